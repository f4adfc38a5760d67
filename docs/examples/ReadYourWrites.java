import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;

/**
 * Reads its own writes through a pool, with pgjdbc. WRITES and READS are URLs of its two ports; behind a pooler in
 * transaction mode they have prepareThreshold=0.
 */
class ReadYourWrites {
    public static void main(String[] args) throws SQLException {
        String token;
        try (Connection writer = DriverManager.getConnection(System.getenv("WRITES"))) {
            try (PreparedStatement insert =
                    writer.prepareStatement("INSERT INTO notes (note) VALUES (?)")) {
                insert.setString(1, args[0]);
                insert.executeUpdate();
            }
            try (Statement asking = writer.createStatement();
                    ResultSet row = asking.executeQuery("SELECT lockstep_replay_token()")) {
                row.next();
                token = row.getString(1);
            }
        }
        try (Connection reader = DriverManager.getConnection(System.getenv("READS"))) {
            reader.setAutoCommit(false);
            // The first statement of the transaction: a pooler may give each transaction another session.
            try (Statement waiting = reader.createStatement()) {
                waiting.execute("SET LOCAL lockstep.wait_for_lsn = '" + token + "'");
            }
            try (PreparedStatement query =
                    reader.prepareStatement("SELECT count(*) FROM notes WHERE note = ?")) {
                query.setString(1, args[0]);
                try (ResultSet row = query.executeQuery()) {
                    row.next();
                    System.out.println(row.getLong(1));
                }
            }
            reader.commit();
        }
    }
}
