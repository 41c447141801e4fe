// Signs in at the development issuer the way a browser does: follows redirects, keeps cookies,
// fills in the form.

export async function idTokenFor(baseUrl: string, email: string): Promise<string> {
  const cookies = new Map<string, string>();
  let url = `${baseUrl}/oidc/start`;
  let init: RequestInit = {};
  for (let hop = 0; hop < 12; hop++) {
    const response = await fetch(url, {
      ...init,
      redirect: 'manual',
      headers: {
        accept: 'application/json',
        cookie: [...cookies].map(([name, value]) => `${name}=${value}`).join('; '),
        ...(init.body ? { 'content-type': 'application/x-www-form-urlencoded' } : {}),
      },
    });
    for (const line of response.headers.getSetCookie()) {
      const [pair = ''] = line.split(';');
      const at = pair.indexOf('=');
      cookies.set(pair.slice(0, at), pair.slice(at + 1));
    }
    init = {};
    const location = response.headers.get('location');
    if (location) url = new URL(location, url).href;
    else if (url.includes('/interaction/'))
      init = { method: 'POST', body: new URLSearchParams({ email }).toString() };
    else {
      const { id_token: idToken } = (await response.json()) as { id_token?: string };
      if (!idToken) throw new Error(`no ID token from ${url}`);
      return idToken;
    }
  }
  throw new Error('sign-in does not end');
}
