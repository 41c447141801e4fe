// The JDBC driver: what an ordinary program does. Arguments: URL, user, password
import java.io.StringReader;
import java.io.StringWriter;
import java.sql.*;
import java.util.Properties;

public class Check {
  public static void main(String[] args) throws Exception {
    Properties properties = new Properties();
    properties.setProperty("user", args[1]);
    properties.setProperty("password", args[2]);
    try (Connection connection = DriverManager.getConnection(args[0], properties)) {
      Statement statement = connection.createStatement();
      statement.execute("drop table if exists java_t; create table java_t (id int primary key, body text)");
      connection.setAutoCommit(false);
      PreparedStatement insert = connection.prepareStatement("insert into java_t values (?, ?)");
      for (int i = 0; i < 2000; i++) {
        insert.setInt(1, i);
        insert.setString(2, "row " + i);
        insert.addBatch();
      }
      insert.executeBatch();
      connection.commit();

      // Read in pieces through a portal; the fifth execution onwards is a named statement.
      PreparedStatement select = connection.prepareStatement("select id from java_t where id >= ? order by id");
      select.setFetchSize(100);
      for (int round = 0; round < 8; round++) {
        select.setInt(1, round);
        int count = 0;
        try (ResultSet rows = select.executeQuery()) { while (rows.next()) count++; }
        if (count != 2000 - round) throw new Exception("rows: " + count);
      }
      connection.commit();

      var copy = new org.postgresql.copy.CopyManager(connection.unwrap(org.postgresql.core.BaseConnection.class));
      StringWriter out = new StringWriter();
      copy.copyOut("copy java_t to stdout", out);
      statement.execute("truncate java_t");
      if (copy.copyIn("copy java_t from stdin", new StringReader(out.toString())) != 2000) throw new Exception("copy");
      connection.commit();

      Statement slow = connection.createStatement();
      new Thread(() -> {
        try { Thread.sleep(200); slow.cancel(); } catch (Exception error) { error.printStackTrace(); }
      }).start();
      try {
        slow.execute("select pg_sleep(30)");
        throw new Exception("not cancelled");
      } catch (SQLException error) {
        if (!"57014".equals(error.getSQLState())) throw error;
      }
      connection.rollback();
      try (ResultSet tables = connection.getMetaData().getTables(null, "public", "java_t", null)) {
        if (!tables.next()) throw new Exception("no metadata");
      }
    }
    System.out.println("ok");
  }
}
