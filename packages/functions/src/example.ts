// A function as its author writes it; type-checked with everything else.
import type { DatabaseError, Handler } from './index.d.ts';

interface Order {
  id: number;
  total: string;
  placed_at: Date;
}

export const handler: Handler<{ customer: string }> = async ({ customer }, ctx) => {
  const { rows } = await ctx.db.query<Order>(
    'select id, total, placed_at from orders where customer = $1 order by id',
    [customer],
  );
  try {
    await ctx.db.transaction(async (tx) => {
      for (const order of rows)
        await tx.query('insert into reported (order_id, at) values ($1, $2)', [
          order.id,
          new Date(),
        ]);
    });
  } catch (error) {
    if ((error as DatabaseError).code !== '23505') throw error;
  }
  await ctx.fs.write(`/reports/${customer}.json`, JSON.stringify(rows));
  return { orders: rows.length, last: rows.at(-1)?.placed_at ?? null, run: ctx.self.runId };
};
