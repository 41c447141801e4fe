import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    include: ['packages/**/*.test.ts', 'test/**/*.test.ts'],
    testTimeout: 60_000,
    hookTimeout: 120_000,
    // Most tests wait for Postgres, not for the processor.
    maxWorkers: 3,
    pool: 'forks',
  },
});
