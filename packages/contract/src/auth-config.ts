import { Type } from 'typebox';
import { operation } from './operation.ts';
import { DatabaseParams, Input, Nullable, Text, Timestamp } from './schemas.ts';

const AuthConfig = Type.Object({
  auth_mode: Type.String(),
  byo_jwt: Nullable(
    Type.Object({
      jwks_url: Type.String(),
      audience: Nullable(Type.String()),
      issuer: Nullable(Type.String()),
      subject_claim: Type.String(),
      claims_allowlist: Type.Array(Type.String()),
      claims_max_bytes: Type.Integer(),
    }),
  ),
  created_at: Nullable(Timestamp),
  updated_at: Nullable(Timestamp),
});

export const authConfig = {
  get: operation({
    id: 'authConfig.get',
    method: 'GET',
    path: '/customer/databases/{database_id}/auth-config',
    access: 'write',
    summary: "How end users' tokens are verified",
    params: DatabaseParams,
    responses: { 200: AuthConfig },
  }),
  put: operation({
    id: 'authConfig.put',
    method: 'PUT',
    path: '/customer/databases/{database_id}/auth-config',
    access: 'write',
    summary: "Set how end users' tokens are verified",
    params: DatabaseParams,
    body: Input({
      auth_mode: Type.Optional(Text('`byo_jwt`')),
      byo_jwt: Type.Optional(
        Input({
          jwks_url: Text('must answer a valid JWKS document', { maxLength: 2048 }),
          audience: Type.Optional(Text('expected `aud`', { maxLength: 1024 })),
          issuer: Type.Optional(Text('expected `iss`', { maxLength: 1024 })),
          subject_claim: Type.Optional(Text('default `sub`', { minLength: 1, maxLength: 255 })),
          claims_allowlist: Type.Optional(
            Type.Array(Type.String({ minLength: 1, maxLength: 255 }), { maxItems: 1000 }),
          ),
          claims_max_bytes: Type.Optional(
            Type.Integer({ minimum: 1, maximum: 1_048_576, description: 'default 4096' }),
          ),
        }),
      ),
    }),
    responses: { 200: AuthConfig },
    errors: [422],
  }),
};
