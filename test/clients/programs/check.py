# psycopg2 (libpq): what an ordinary program does. argv: connection string
import io, select, sys
import psycopg2, psycopg2.extras

connection = psycopg2.connect(sys.argv[1])
connection.autocommit = True
cursor = connection.cursor()
cursor.execute("drop table if exists py_t; create table py_t (id int primary key, body text, raw bytea)")
psycopg2.extras.execute_values(
    cursor, "insert into py_t values %s", [(i, "row %d é" % i, bytes([i % 256] * 50)) for i in range(5000)])
cursor.execute("select count(*), sum(length(raw)) from py_t")
assert cursor.fetchone() == (5000, 250000)

out = io.BytesIO()
cursor.copy_expert("copy py_t to stdout (format binary)", out)
cursor.execute("truncate py_t")
out.seek(0)
cursor.copy_expert("copy py_t from stdin (format binary)", out)
cursor.execute("select count(*) from py_t")
assert cursor.fetchone() == (5000,)

# A server-side cursor, in a transaction.
connection.autocommit = False
with connection.cursor("named") as named:
    named.itersize = 100
    named.execute("select id from py_t order by id")
    assert [row[0] for row in named] == list(range(5000))
connection.commit()
connection.autocommit = True

cursor.execute("listen py_channel")
cursor.execute("notify py_channel, 'hello'")
while not connection.notifies:
    assert select.select([connection], [], [], 10)[0], "no notification"
    connection.poll()
assert connection.notifies[0].payload == "hello"

# Cancelled from another thread through libpq.
import threading
threading.Timer(0.2, connection.cancel).start()
try:
    cursor.execute("select pg_sleep(30)")
    raise SystemExit("not cancelled")
except psycopg2.extensions.QueryCanceledError:
    pass
cursor.execute("select 1")
print("ok ssl=%s" % connection.info.ssl_in_use)
