import { Type } from 'typebox';
import { operation } from './operation.ts';
import { Input, Message, Text, Timestamp } from './schemas.ts';

const TokenMetadata = Type.Object({
  id: Type.String(),
  name: Type.String(),
  expires_at: Timestamp,
  created_at: Timestamp,
});

export const tokens = {
  create: operation({
    id: 'tokens.create',
    method: 'POST',
    path: '/customer/tokens',
    access: 'account',
    summary: 'Create an API token',
    body: Input({
      name: Type.Optional(Text('a label', { maxLength: 255 })),
      expires_in_days: Type.Optional(
        Type.Integer({ minimum: 1, maximum: 36_500, description: 'default 365' }),
      ),
      scope_json: Type.Optional(
        Text('JSON text `{"databases": [{"id", "access": "ro" | "rw"}]}`; omitted: no limits'),
      ),
    }),
    responses: { 201: Type.Object({ ...TokenMetadata.properties, token: Type.String() }) },
  }),
  list: operation({
    id: 'tokens.list',
    method: 'GET',
    path: '/customer/tokens',
    access: 'account',
    summary: 'The API tokens of the account, without their values',
    responses: { 200: Type.Array(TokenMetadata) },
  }),
  revoke: operation({
    id: 'tokens.revoke',
    method: 'DELETE',
    path: '/customer/tokens/{token_id}',
    access: 'account',
    summary: 'Revoke an API token at once',
    params: Type.Object({ token_id: Text('the token') }),
    responses: { 200: Message },
  }),
};
