// The few system calls that move bytes between two sockets without Node's streams, which cost three
// times as much processor time a message. Linux only.
import koffi from 'koffi';

export const epollIn = 0x001;
export const epollOut = 0x004;
export const epollAdd = 1;
export const epollDelete = 2;
export const epollModify = 3;
export const again = 11;
export const interrupted = 4;
/** MSG_DONTWAIT | MSG_NOSIGNAL: never block, and an error rather than SIGPIPE. */
export const sendFlags = 0x40 | 0x4000;
export const receiveFlags = 0x40;
/** EFD_NONBLOCK | EFD_CLOEXEC */
export const eventFlags = 0o4000 | 0o2000000;
export const closeOnExec = 0o2000000;

/** `struct epoll_event` is packed on x86-64 and nowhere else; the descriptor is our data in it. */
export const epollEvent =
  process.arch === 'x64' ? { bytes: 12, dataAt: 4 } : { bytes: 16, dataAt: 8 };

export type Libc = ReturnType<typeof loadLibc>;

export function loadLibc() {
  const own = koffi.load(null);
  const declare = <A extends unknown[]>(prototype: string) =>
    own.func(prototype) as unknown as (...args: A) => number;
  return {
    /** F_DUPFD_CLOEXEC: a second descriptor of the same socket. */
    duplicate: (() => {
      const fcntl = declare<[number, number, number]>('int fcntl(int fd, int command, long value)');
      return (fd: number) => fcntl(fd, 1030, 3);
    })(),
    close: declare<[number]>('int close(int fd)'),
    send: declare<[number, Buffer, number, number]>(
      'long send(int fd, void *bytes, size_t length, int flags)',
    ),
    receive: declare<[number, Buffer, number, number]>(
      'long recv(int fd, void *bytes, size_t length, int flags)',
    ),
    read: declare<[number, Buffer, number]>('long read(int fd, void *bytes, size_t length)'),
    write: declare<[number, Buffer, number]>('long write(int fd, void *bytes, size_t length)'),
    eventfd: declare<[number, number]>('int eventfd(uint32_t value, int flags)'),
    epollCreate: declare<[number]>('int epoll_create1(int flags)'),
    epollControl: declare<[number, number, number, Buffer]>(
      'int epoll_ctl(int epoll, int operation, int fd, void *event)',
    ),
    epollWait: declare<[number, Buffer, number, number]>(
      'int epoll_wait(int epoll, void *events, int limit, int timeoutMs)',
    ),
    /** Of the last call that failed, in this thread. */
    errno: () => koffi.errno(),
  };
}
