package interop;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;

/**
 * A Redisson client that obeys: one command in JSON on each line of standard input, one answer on each line of
 * standard output. Ends with its input.
 *
 * <p>Each command names the thread that obeys it, so that owners, re-entry and waiting are as in any Java program;
 * threads of other names go on meanwhile, and answers come in the order in which they are known.
 */
public final class Main {
    private static final Gson GSON = new GsonBuilder().serializeNulls().create();

    private final Clients clients = new Clients();
    private final Map<String, Worker> threads = new HashMap<>();

    /**
     * What to do: {@code calls} are made one upon the answer of the other, the first upon the client. Without any the
     * answer is the thread's state, whatever it is about.
     */
    private record Command(long id, String thread, Clients.Address client, Calls calls) {}

    private record Answer(long id, Object value, String error) {}

    public static void main(String[] arguments) throws Exception {
        Main main = new Main();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            main.begin(GSON.fromJson(line, Command.class));
        }
        // What is held is to end by its lease, as after a crash: no client is shut down.
        Runtime.getRuntime().halt(0);
    }

    private void begin(Command command) {
        Worker worker = threads.computeIfAbsent(command.thread(), name -> new Worker());
        if (command.calls().isEmpty()) {
            answer(new Answer(command.id(), worker.state(), null));
        } else {
            worker.execute(() -> answer(obey(command)));
        }
    }

    private Answer obey(Command command) {
        try {
            Object value = command.calls().on(clients.get(command.client()));
            return new Answer(command.id(), value, null);
        } catch (Throwable error) {
            return new Answer(command.id(), null, describe(error));
        }
    }

    private static String describe(Throwable error) {
        String text = error.getClass().getSimpleName() + ": " + error.getMessage();
        return error.getCause() == null ? text : text + "; " + describe(error.getCause());
    }

    private static synchronized void answer(Answer answer) {
        System.out.println(GSON.toJson(answer));
    }
}
