// What goes out on a connection. It knows how much the client has not taken yet, so that a client
// that asks and does not read cannot fill the service's memory.
import { type WebSocket, WebSocket as WebSocketState } from 'ws';

export interface Outbox {
  /** Resolves when the bytes have left for the network; rejects if they never will. */
  send(data: string | Buffer): Promise<void>;
  /** Resolves when little waits to be sent. */
  room(): Promise<void>;
  readonly full: boolean;
}

const fullBytes = 1024 * 1024;

export function createOutbox(socket: WebSocket): Outbox {
  let waiting: (() => void)[] = [];

  const isFull = () => socket.bufferedAmount > fullBytes;
  function wakeUp(): void {
    if (isFull() && socket.readyState === WebSocketState.OPEN) return;
    const ready = waiting;
    waiting = [];
    for (const resolve of ready) resolve();
  }
  socket.on('close', wakeUp);

  return {
    send: (data) =>
      new Promise((resolve, reject) => {
        socket.send(data, (error) => {
          wakeUp();
          if (error) reject(error);
          else resolve();
        });
      }),
    room: () =>
      isFull() && socket.readyState === WebSocketState.OPEN
        ? new Promise((resolve) => waiting.push(resolve))
        : Promise.resolve(),
    get full() {
      return isFull();
    },
  };
}
