import type { Queryable } from '../../engine/metastore/metastore.ts';

export async function fileBytes(db: Queryable): Promise<number> {
  const { rows } = await db.query<{ bytes: string }>('select fs.logical_bytes() as bytes');
  return Number(rows[0]!.bytes);
}
