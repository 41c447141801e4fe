// Settings that servers are started with. All go on the command line, so that a new release changes
// databases made long ago, and nothing inside a database can change them.
import type { Binaries } from './binaries.ts';
import type { Settings } from './fleet.ts';

export interface InstanceLimits {
  connections: number;
  sharedBuffersMb: number;
  /** Temporary files of one session, in MiB. */
  temporaryFilesMb: number;
  /** Memory of one session, in MiB, beside the shared buffers. */
  sessionMemoryMb: number;
}

/** A customer's database: lean, since hundreds may be awake at once. */
export function instanceSettings(binaries: Binaries, limits: InstanceLimits): Settings {
  return {
    ...shared(binaries),
    max_connections: String(limits.connections),
    // For the service's own sessions, when customers have taken all others.
    superuser_reserved_connections: '6',
    shared_buffers: `${limits.sharedBuffersMb}MB`,
    temp_file_limit: `${limits.temporaryFilesMb}MB`,
    effective_cache_size: '1GB',
    max_worker_processes: '4',
    max_parallel_workers: '2',
    max_parallel_workers_per_gather: '1',
    max_logical_replication_workers: '0',
    autovacuum_max_workers: '2',
    ...(binaries.major >= 18 ? { autovacuum_worker_slots: '2' } : {}),
    // Segments of 1 MB are made as they are needed: an idle database keeps next to none.
    wal_recycle: 'off',
    wal_init_zero: 'off',
    min_wal_size: '2MB',
    max_wal_size: '256MB',
    // A customer can raise LOG messages at will: only what ends a session or the server is written.
    log_min_messages: 'fatal',
    log_min_error_statement: 'panic',
  };
}

/** The control database: few sessions, much used. */
export function controlSettings(binaries: Binaries): Settings {
  return {
    ...shared(binaries),
    max_connections: '100',
    shared_buffers: '64MB',
    max_wal_size: '1GB',
    max_worker_processes: '4',
    max_logical_replication_workers: '0',
    log_min_messages: 'fatal',
  };
}

function shared({ major }: Binaries): Settings {
  return {
    timezone: 'UTC',
    log_timezone: 'UTC',
    lc_messages: 'C',
    huge_pages: 'off',
    jit: 'off',
    wal_level: 'replica',
    max_wal_senders: '2',
    max_replication_slots: '4',
    password_encryption: 'scram-sha-256',
    // What a client that went away has left running ends.
    client_connection_check_interval: '5s',
    // After a crash: one call instead of one a file.
    ...(process.platform === 'linux' ? { recovery_init_sync_method: 'syncfs' } : {}),
    ...(major >= 17 ? { allow_alter_system: 'off' } : {}),
    ...(major >= 18 ? { io_method: 'sync' } : {}),
  };
}
