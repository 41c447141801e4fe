// An OpenID provider for trying out claim and sign-in on one's own machine: discovery, JWKS and the
// authorization-code flow (PKCE), with a sign-in page that takes any e-mail address. It exists only
// while no issuer is configured and the service listens on loopback.
import { createHash, generateKeyPairSync, randomBytes } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { FastifyInstance } from 'fastify';
import type { Logger } from '../../kernel/logger.ts';

const prefix = '/oidc';
export const developmentClientId = 'coppice-development';

export interface DevelopmentIssuer {
  trusted(): { issuer: string; audience: string };
  startUrl(): string;
  addTo(app: FastifyInstance): void;
}

/** `publicUrl` is part of every token, and known once the service listens. */
export function createDevelopmentIssuer(
  publicUrl: () => string,
  logger: Logger,
): DevelopmentIssuer {
  let dispatch: ReturnType<typeof createProvider> | undefined;
  return {
    trusted: () => ({ issuer: `${publicUrl()}${prefix}`, audience: developmentClientId }),
    startUrl: () => `${publicUrl()}${prefix}/start`,
    addTo(app) {
      app.route({
        method: ['GET', 'POST', 'OPTIONS'],
        url: `${prefix}/*`,
        onRequest(request, reply) {
          // The provider reads bodies and writes answers itself.
          reply.hijack();
          // Loaded by the first one who signs in.
          dispatch ??= createProvider(publicUrl(), logger);
          const handled = dispatch.then((handle) => handle(request.raw, reply.raw));
          handled.catch((error: Error) => {
            request.log.debug({ err: error }, 'development issuer');
            if (!reply.raw.headersSent)
              html(reply.raw, 400, page('Sign-in failed', '<p>Please start again.</p>'));
          });
        },
        handler() {},
      });
    },
  };
}

async function createProvider(publicUrl: string, logger: Logger) {
  const { default: Provider } = await import('oidc-provider');
  const issuer = `${publicUrl}${prefix}`;
  const callbackUrl = `${issuer}/callback`;
  const emails = new Map<string, string>();
  const subjectOf = (email: string) =>
    createHash('sha256').update(email.toLowerCase()).digest('hex').slice(0, 32);

  const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const provider = new Provider(issuer, {
    clients: [
      {
        client_id: developmentClientId,
        token_endpoint_auth_method: 'none',
        application_type: 'native',
        grant_types: ['authorization_code'],
        response_types: ['code'],
        // A native client's loopback redirect may have any port.
        redirect_uris: [
          callbackUrl,
          'http://127.0.0.1/callback',
          'http://localhost/callback',
        ].filter((uri, index, all) => all.indexOf(uri) === index),
        id_token_signed_response_alg: 'ES256',
      },
    ],
    jwks: {
      keys: [
        {
          ...privateKey.export({ format: 'jwk' }),
          kty: 'EC',
          alg: 'ES256',
          use: 'sig',
          kid: randomBytes(8).toString('hex'),
        } as never,
      ],
    },
    cookies: { keys: [randomBytes(24).toString('hex')] },
    claims: { openid: ['sub'], email: ['email', 'email_verified'] },
    // The e-mail address belongs into the ID token itself: that is what claim takes.
    conformIdTokenClaims: false,
    pkce: { required: () => true },
    scopes: ['openid', 'email'],
    ttl: { Session: 3600, Interaction: 600, Grant: 3600, IdToken: 3600, AccessToken: 3600 },
    features: { devInteractions: { enabled: false }, rpInitiatedLogout: { enabled: false } },
    interactions: { url: (_context, interaction) => `${prefix}/interaction/${interaction.uid}` },
    findAccount: (_context, subject) => ({
      accountId: subject,
      claims: () => ({ sub: subject, email: emails.get(subject), email_verified: true }),
    }),
  });
  provider.proxy = false;
  provider.on('server_error', (_context, error) =>
    logger.error({ err: error }, 'development issuer'),
  );
  const handle = provider.callback();

  async function interact(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const details = await provider.interactionDetails(request, response);
    if (request.method !== 'POST') {
      const hint = details.params.login_hint;
      return html(response, 200, signInPage(typeof hint === 'string' ? hint : ''));
    }
    const email = new URLSearchParams(await readText(request, 4096)).get('email')?.trim() ?? '';
    if (!/^[^\s@]+@[^\s@]+$/.test(email))
      return html(response, 400, signInPage(email, 'That is not an e-mail address.'));
    const subject = subjectOf(email);
    emails.set(subject, email);
    const grant = new provider.Grant({
      accountId: subject,
      clientId: details.params.client_id as string,
    });
    grant.addOIDCScope('openid email');
    await provider.interactionFinished(
      request,
      response,
      { login: { accountId: subject, remember: false }, consent: { grantId: await grant.save() } },
      { mergeWithLastSubmission: false },
    );
  }

  /** Begins the flow for a person (or curl) without a client of their own. */
  function start(request: IncomingMessage, response: ServerResponse): void {
    const verifier = randomBytes(32).toString('base64url');
    const query = new URL(request.url ?? '/', issuer).searchParams;
    const url = new URL(`${issuer}/auth`);
    url.search = new URLSearchParams({
      client_id: developmentClientId,
      redirect_uri: callbackUrl,
      response_type: 'code',
      scope: 'openid email',
      prompt: 'login',
      code_challenge: createHash('sha256').update(verifier).digest('base64url'),
      code_challenge_method: 'S256',
      login_hint: query.get('email') ?? '',
    }).toString();
    response.writeHead(302, {
      location: url.href,
      'set-cookie': `coppice_dev_verifier=${verifier}; Path=${prefix}; HttpOnly; SameSite=Lax`,
    });
    response.end();
  }

  async function finish(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const code = new URL(request.url ?? '/', issuer).searchParams.get('code') ?? '';
    const verifier = /coppice_dev_verifier=([\w-]+)/.exec(request.headers.cookie ?? '')?.[1] ?? '';
    const answer = await fetch(`${issuer}/token`, {
      method: 'POST',
      body: new URLSearchParams({
        grant_type: 'authorization_code',
        client_id: developmentClientId,
        redirect_uri: callbackUrl,
        code,
        code_verifier: verifier,
      }),
      signal: AbortSignal.timeout(5_000),
    });
    const { id_token: idToken } = (await answer.json()) as { id_token?: string };
    if (!idToken) return html(response, 400, page('Sign-in failed', '<p>Please start again.</p>'));
    if (request.headers.accept?.includes('application/json')) {
      response.writeHead(200, { 'content-type': 'application/json' });
      return void response.end(JSON.stringify({ id_token: idToken }));
    }
    html(response, 200, tokenPage(publicUrl, idToken));
  }

  return async function dispatch(
    request: IncomingMessage,
    response: ServerResponse,
  ): Promise<void> {
    const path = (request.url ?? '').slice(prefix.length).split('?')[0]!;
    if (path === '/start') return start(request, response);
    if (path === '/callback') return finish(request, response);
    if (path.startsWith('/interaction/')) return interact(request, response);
    Object.assign(request, { originalUrl: request.url });
    request.url = (request.url ?? '').slice(prefix.length);
    return handle(request, response);
  };
}

async function readText(request: IncomingMessage, limitBytes: number): Promise<string> {
  let text = '';
  for await (const chunk of request) {
    text += chunk;
    if (text.length > limitBytes) throw new Error('form is too large');
  }
  return text;
}

function html(response: ServerResponse, status: number, body: string): void {
  response.writeHead(status, {
    'content-type': 'text/html; charset=utf-8',
    'cache-control': 'no-store',
  });
  response.end(body);
}

function escapeHtml(text: string): string {
  return text.replaceAll(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
}

function page(title: string, content: string): string {
  return `<!doctype html><html lang="en"><meta charset="utf-8"><title>${title}</title>
<meta name="viewport" content="width=device-width">
<style>body{font:16px/1.5 system-ui;max-width:36rem;margin:4rem auto;padding:0 1rem}
input,button{font:inherit;padding:.5rem;width:100%;box-sizing:border-box;margin:.25rem 0}
pre{white-space:pre-wrap;word-break:break-all;background:#f3f3f3;padding:1rem}</style>
<h1>${title}</h1>${content}</html>`;
}

function signInPage(email: string, problem = ''): string {
  return page(
    'Coppice development sign-in',
    `<p>This page stands in for an identity provider on your own machine: any address will do.</p>
<p role="alert">${escapeHtml(problem)}</p>
<form method="post"><label>E-mail address
<input name="email" type="email" required autofocus value="${escapeHtml(email)}"></label>
<button>Sign in</button></form>`,
  );
}

function tokenPage(publicUrl: string, idToken: string): string {
  return page(
    'Signed in',
    `<p>Your ID token, for <code>POST /customer/claim</code> or <code>POST /customer/sessions</code>:</p>
<pre id="id-token">${escapeHtml(idToken)}</pre>
<pre>curl -X POST ${escapeHtml(publicUrl)}/customer/sessions -d '{"id_token": "…"}'</pre>`,
  );
}
