package interop;

import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.List;
import java.util.Scanner;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/**
 * Acquires and releases a lock: {@code RLock} or {@code FairLock}. Each line of standard input is a number of pairs, and
 * the answer is the CPU and the wall time that the process took for them, in nanoseconds.
 */
public final class Pairs {
    public static void main(String[] arguments) {
        RLock lock = make(arguments[0], new Clients().get(address()));
        OperatingSystemMXBean process = ManagementFactory.getPlatformMXBean(OperatingSystemMXBean.class);
        for (Scanner lines = new Scanner(System.in); lines.hasNextInt(); ) {
            int pairs = lines.nextInt();
            long cpu = process.getProcessCpuTime();
            long wall = System.nanoTime();
            for (int i = 0; i < pairs; i++) {
                lock.lock();
                lock.unlock();
            }
            System.out.println(
                    (process.getProcessCpuTime() - cpu) + " " + (System.nanoTime() - wall));
        }
    }

    static Clients.Address address() {
        String url = System.getenv("RLOCK_BENCH_URL").replaceFirst("/\\d+$", "");
        return new Clients.Address(List.of(url), "single", "", 30_000, List.of());
    }

    static RLock make(String kind, RedissonClient client) {
        return kind.equals("FairLock") ? client.getFairLock("bench:redisson-fair") : client.getLock("bench:redisson");
    }
}
