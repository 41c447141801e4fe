import { expect, test } from 'vitest';
import { ConfigError, envName, flagName, helpText, loadConfig, settings } from './config.ts';

test('defaults, environment, flags: the last wins', () => {
  expect(loadConfig([], {})).toMatchObject({ host: '127.0.0.1', port: 8080, gatewayPort: 5433 });
  expect(loadConfig([], { COPPICE_PORT: '1' }).port).toBe(1);
  expect(loadConfig(['--port', '2'], { COPPICE_PORT: '1' }).port).toBe(2);
  expect(loadConfig(['--port=3'], {}).port).toBe(3);
  expect(loadConfig(['--trust-proxy'], {}).trustProxy).toBe(true);
  expect(loadConfig(['--trust-proxy', 'false'], {}).trustProxy).toBe(false);
  expect(loadConfig(['--regions', 'eu, us'], {}).regions).toEqual(['eu', 'us']);
  expect(Object.isFrozen(loadConfig([], {}))).toBe(true);
});

test.each([
  [['--nonsense'], /unknown option --nonsense/],
  [['--port'], /needs a value/],
  [['--port', 'x'], /--port must be a whole number/],
  [['--port', '70000'], /between 0 and 65535/],
  [['--log-level', 'loud'], /one of/],
])('%j is refused with a clear message', (argv, message) => {
  expect(() => loadConfig(argv, {})).toThrow(ConfigError);
  expect(() => loadConfig(argv, {})).toThrow(message);
});

test('a bad variable is named', () => {
  expect(() => loadConfig([], { COPPICE_PORT: 'x' })).toThrow(/COPPICE_PORT must be/);
});

test('help lists every setting with its flag and variable', () => {
  const help = helpText();
  for (const key of Object.keys(settings)) {
    expect(help).toContain(flagName(key));
    expect(help).toContain(envName(key));
  }
});
