// Raw HTTP, as a client without an SDK sees it.

export interface Answer<T = any> {
  status: number;
  headers: Headers;
  body: T;
  text: string;
}

export interface Api {
  /** `body` is sent as JSON; a string as it is. */
  call<T = any>(
    method: string,
    path: string,
    options?: {
      token?: string | undefined;
      body?: unknown;
      headers?: Record<string, string>;
      signal?: AbortSignal;
    },
  ): Promise<Answer<T>>;
  /** A fresh anonymous account. */
  register(): Promise<Account>;
}

export interface Account {
  id: string;
  secret: string;
  token: string;
  get<T = any>(path: string): Promise<Answer<T>>;
  post<T = any>(path: string, body?: unknown): Promise<Answer<T>>;
  put<T = any>(path: string, body?: unknown): Promise<Answer<T>>;
  delete<T = any>(path: string): Promise<Answer<T>>;
  /** The same account through another credential. */
  as(token: string): Account;
  /** A ready database; fails the test otherwise. */
  database(name?: string): Promise<CreatedDatabase>;
  /** Runs SQL; fails the test unless it works. */
  sql<T = any>(databaseId: string, query: string): Promise<T>;
}

export interface CreatedDatabase {
  id: string;
  name: string;
  connection_string: string;
  admin_user: string;
  admin_password: string;
  created_at: string;
}

let names = 0;

export function createApi(baseUrl: string): Api {
  const call: Api['call'] = async (method, path, options = {}) => {
    const { token, body, headers, signal } = options;
    const response = await fetch(`${baseUrl}${path}`, {
      method,
      headers: {
        ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        ...headers,
      },
      ...(body === undefined
        ? {}
        : { body: typeof body === 'string' ? body : JSON.stringify(body) }),
      ...(signal ? { signal } : {}),
    });
    const text = await response.text();
    const isJson = response.headers.get('content-type')?.includes('json') && text !== '';
    return {
      status: response.status,
      headers: response.headers,
      text,
      body: isJson ? JSON.parse(text) : undefined,
    };
  };

  function account(id: string, secret: string, token: string): Account {
    const self: Account = {
      id,
      secret,
      token,
      get: (path) => call('GET', path, { token }),
      post: (path, body) => call('POST', path, { token, body }),
      put: (path, body) => call('PUT', path, { token, body }),
      delete: (path) => call('DELETE', path, { token }),
      as: (other) => account(id, secret, other),
      async database(name = `db-${process.pid}-${++names}`) {
        return expectStatus(await self.post('/customer/databases', { name }), 201);
      },
      async sql(databaseId, query) {
        return expectStatus(
          await self.post(`/customer/databases/${databaseId}/sql`, { query }),
          200,
        );
      },
    };
    return self;
  }

  return {
    call,
    async register() {
      const { body } = await call('POST', '/customer/anonymous-register');
      return account(body.anonymous_id, body.anonymous_secret, body.token);
    },
  };
}

function expectStatus<T>(answer: Answer<T>, status: number): T {
  if (answer.status !== status)
    throw new Error(`expected ${status}, got ${answer.status}: ${answer.text.slice(0, 500)}`);
  return answer.body;
}
