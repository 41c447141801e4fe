// A typed client of Coppice for browsers and Node.
export * from './files.ts';
export * from './functions.ts';
