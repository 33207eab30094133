import io.github.distlock.DistlockException;
import io.github.distlock.Locks;
import io.github.distlock.Options;
import java.time.Duration;

public class Example {
    public static void main(String[] args) throws InterruptedException {
        var locks = Locks.of("http://localhost:7077");
        try (var lease = locks.lock("report", Options.defaults().wait(Duration.ofSeconds(10)))) {
            for (int part = 0; part < 3; part++) {
                lease.check(); // throws Lost in time
                System.out.println("part " + part + ", fence " + lease.fence());
            }
        } catch (DistlockException.Held e) {
            System.err.println("not now: " + e.getMessage());
            System.exit(1);
        }
    }
}
