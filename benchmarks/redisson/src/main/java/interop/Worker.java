package interop;

import java.util.concurrent.Executor;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/** One thread, which does one thing after the other. */
final class Worker implements Executor {
    private final ExecutorService executor = Executors.newSingleThreadExecutor(this::newThread);
    private volatile Thread thread;

    @Override
    public void execute(Runnable work) {
        executor.execute(work);
    }

    /** TIMED_WAITING in a lock that is waited for, but WAITING for a reply from the server. */
    Thread.State state() {
        return thread.getState();
    }

    private Thread newThread(Runnable work) {
        thread = new Thread(work);
        return thread;
    }
}
