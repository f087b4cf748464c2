package interop;

import java.util.List;
import java.util.Scanner;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.redisson.api.RLock;

/**
 * Clients that want one fair lock, and hold it for a millisecond each time. Each line of standard input is a time in
 * milliseconds, and the answer is how often they held it meanwhile.
 */
public final class Turns {
    public static void main(String[] arguments) throws Exception {
        int clients = Integer.parseInt(arguments[0]);
        List<RLock> locks = Stream.generate(() -> Pairs.make("FairLock", new Clients().get(Pairs.address())))
                .limit(clients)
                .toList();
        ExecutorService threads = Executors.newFixedThreadPool(clients);
        for (Scanner lines = new Scanner(System.in); lines.hasNextInt(); ) {
            long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(lines.nextInt());
            List<Callable<Integer>> work =
                    locks.stream().<Callable<Integer>>map(lock -> () -> turns(lock, end)).toList();
            int held = 0;
            for (Future<Integer> each : threads.invokeAll(work)) {
                held += each.get();
            }
            System.out.println(held);
        }
        threads.shutdownNow();
    }

    private static int turns(RLock lock, long end) throws InterruptedException {
        int held = 0;
        while (System.nanoTime() < end && lock.tryLock(end - System.nanoTime(), TimeUnit.NANOSECONDS)) {
            Thread.sleep(1);
            lock.unlock();
            held += System.nanoTime() <= end ? 1 : 0;
        }
        return held;
    }
}
