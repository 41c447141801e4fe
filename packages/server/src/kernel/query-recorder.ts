/** Where both ways in (HTTP and the Postgres port) say what they ran; observability reads it. */
export interface QueryRecorder {
  /** One statement that ended; `text` is absent where only its duration is known. */
  query(databaseId: string, durationMs: number, failed: boolean, text?: string): void;
  /** A client connection opened; call the result when it closes. */
  connection(databaseId: string): () => void;
}
