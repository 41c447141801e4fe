import { Refusal } from './refusal.ts';

export interface Places {
  /** Takes one of the database's connections; refuses when there is none. Call the result once. */
  take(databaseId: string): () => void;
}

export function createPlaces(limitPerDatabase: number): Places {
  const taken = new Map<string, number>();
  return {
    take(databaseId) {
      const count = taken.get(databaseId) ?? 0;
      if (count >= limitPerDatabase)
        throw new Refusal(
          '53300',
          `too many connections for database "${databaseId}": at most ${limitPerDatabase}`,
        );
      taken.set(databaseId, count + 1);
      return () => {
        const left = (taken.get(databaseId) ?? 1) - 1;
        if (left === 0) taken.delete(databaseId);
        else taken.set(databaseId, left);
      };
    },
  };
}
