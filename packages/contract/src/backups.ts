import { Type } from 'typebox';
import { operation } from './operation.ts';
import {
  DatabaseName,
  DatabaseParams,
  Input,
  Message,
  Nullable,
  Text,
  Timestamp,
  withDatabase,
} from './schemas.ts';

const Backup = Type.Object({
  id: Type.String(),
  database_id: Type.String(),
  state: Type.Enum(['creating', 'ready', 'failed']),
  label: Nullable(Type.String()),
  size_bytes: Nullable(Type.Integer()),
  created_at: Timestamp,
  completed_at: Nullable(Timestamp),
  error: Nullable(Type.String()),
});
const Restore = Type.Object({
  id: Type.String(),
  backup_id: Type.String(),
  target_name: Type.String(),
  database_id: Nullable(Type.String()),
  state: Type.Enum(['restoring', 'ready', 'failed']),
  created_at: Timestamp,
  completed_at: Nullable(Timestamp),
  error: Nullable(Type.String()),
});
const BackupParams = withDatabase({ backup_id: Text('the backup') });

export const backups = {
  create: operation({
    id: 'backups.create',
    method: 'POST',
    path: '/customer/databases/{database_id}/backups',
    access: 'write',
    summary: 'Start a backup',
    params: DatabaseParams,
    body: Input({ label: Type.Optional(Text('a label', { maxLength: 255 })) }),
    responses: { 201: Backup },
  }),
  list: operation({
    id: 'backups.list',
    method: 'GET',
    path: '/customer/databases/{database_id}/backups',
    access: 'read',
    summary: 'The backups, newest first',
    params: DatabaseParams,
    responses: { 200: Type.Array(Backup) },
  }),
  get: operation({
    id: 'backups.get',
    method: 'GET',
    path: '/customer/databases/{database_id}/backups/{backup_id}',
    access: 'read',
    summary: 'One backup',
    params: BackupParams,
    responses: { 200: Backup },
  }),
  delete: operation({
    id: 'backups.delete',
    method: 'DELETE',
    path: '/customer/databases/{database_id}/backups/{backup_id}',
    access: 'write',
    summary: 'Delete a backup',
    params: BackupParams,
    responses: { 200: Message },
  }),
};

export const restores = {
  create: operation({
    id: 'restores.create',
    method: 'POST',
    path: '/customer/restores',
    access: 'account',
    summary: 'Make a new database from a backup',
    body: Input({
      backup_id: Text('the backup'),
      target_name: DatabaseName,
      idempotency_key: Type.Optional(
        Text('the same key gives the same restore', { minLength: 1, maxLength: 255 }),
      ),
    }),
    responses: { 201: Restore },
    errors: [409, 422],
  }),
  get: operation({
    id: 'restores.get',
    method: 'GET',
    path: '/customer/restores/{restore_id}',
    access: 'account',
    summary: 'How a restore is getting on',
    params: Type.Object({ restore_id: Text('the restore') }),
    responses: { 200: Restore },
  }),
};
