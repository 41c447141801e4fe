import { Type } from 'typebox';
import { operation } from './operation.ts';
import { Input, Nullable, Text, Timestamp } from './schemas.ts';

export const Customer = Type.Object({
  id: Text('customer identifier'),
  email: Nullable(Type.String()),
  created_at: Timestamp,
  status: Type.Literal('active'),
  is_anonymous: Type.Boolean(),
});

export const accounts = {
  me: operation({
    id: 'accounts.me',
    method: 'GET',
    path: '/customer/me',
    access: 'self',
    summary: 'The account behind the credential',
    responses: { 200: Customer },
  }),
  register: operation({
    id: 'accounts.register',
    method: 'POST',
    path: '/customer/anonymous-register',
    access: 'public',
    summary: 'Create an anonymous account',
    responses: {
      201: Type.Object({
        anonymous_id: Type.String(),
        anonymous_secret: Text('returned this once; needed to refresh and to adopt databases'),
        token: Text('session token (a signed JWT)'),
        expires_at: Timestamp,
        is_anonymous: Type.Literal(true),
      }),
    },
  }),
  refresh: operation({
    id: 'accounts.refresh',
    method: 'POST',
    path: '/customer/anonymous-refresh',
    access: 'public',
    summary: 'A new session token for an anonymous account',
    body: Input({
      anonymous_id: Text('from registration'),
      anonymous_secret: Text('from registration'),
    }),
    responses: { 200: Type.Object({ token: Type.String(), expires_at: Timestamp }) },
  }),
  claim: operation({
    id: 'accounts.claim',
    method: 'POST',
    path: '/customer/claim',
    access: 'account',
    summary: 'Turn the anonymous account into a verified one',
    body: Input({ id_token: Text("an identity provider's ID token") }),
    responses: {
      200: Type.Object({ id: Type.String(), email: Type.String(), claimed: Type.Literal(true) }),
    },
    errors: [409],
  }),
  signIn: operation({
    id: 'accounts.signIn',
    method: 'POST',
    path: '/customer/sessions',
    access: 'public',
    summary: 'Sign in with an ID token; creates the customer if new',
    body: Input({ id_token: Text("an identity provider's ID token") }),
    responses: {
      201: Type.Object({
        token: Type.String(),
        expires_at: Timestamp,
        id: Type.String(),
        email: Type.String(),
      }),
    },
  }),
  adoptPreflight: operation({
    id: 'accounts.adoptPreflight',
    method: 'POST',
    path: '/customer/adopt-anonymous-databases/preflight',
    access: 'account',
    summary: 'What an adoption would move',
    body: Input({
      anonymous_customer_id: Text('the account to take databases from'),
      anonymous_secret: Text('its secret'),
    }),
    responses: {
      200: Type.Object({
        databases: Type.Array(
          Type.Object({ id: Type.String(), name: Type.String(), state: Type.Literal('ACTIVE') }),
        ),
        quota_ok: Type.Boolean(),
        current_count: Type.Integer(),
        database_limit: Type.Integer(),
      }),
    },
    errors: [409],
  }),
  adopt: operation({
    id: 'accounts.adopt',
    method: 'POST',
    path: '/customer/adopt-anonymous-databases',
    access: 'account',
    summary: 'Move databases of an anonymous account to the caller',
    body: Input({
      anonymous_customer_id: Text('the account to take databases from'),
      anonymous_secret: Text('its secret'),
      database_ids: Type.Array(Type.String(), { minItems: 1, maxItems: 100 }),
      idempotency_key: Text('the same key gives the first answer again', {
        minLength: 1,
        maxLength: 255,
      }),
    }),
    responses: {
      200: Type.Object({
        transferred: Type.Array(Type.String()),
        skipped: Type.Array(Type.Object({ id: Type.String(), reason: Type.String() })),
        total_transferred: Type.Integer(),
      }),
    },
    errors: [409, 422],
  }),
};
