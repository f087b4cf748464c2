package interop;

import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonParseException;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.List;
import org.redisson.api.RLock;

/**
 * Calls of public methods by name, {@code [["getLock", "stock"], ["lock", 10, "MINUTES"]]}: of several methods of a
 * name, the first one that the arguments fit is called.
 */
final class Calls extends ArrayList<JsonArray> {
    private static final Gson GSON = new Gson();

    /** Make the calls, each upon the answer of the one before; answers what the last one answered. */
    Object on(Object target) throws Throwable {
        for (JsonArray call : this) {
            List<JsonElement> words = call.asList();
            target = make(target, words.get(0).getAsString(), words.subList(1, words.size()));
        }
        return target;
    }

    private static Object make(Object target, String name, List<JsonElement> words) throws Throwable {
        for (Method method : target.getClass().getMethods()) {
            Object[] arguments = method.getName().equals(name) ? fit(target, words, method.getParameterTypes()) : null;
            if (arguments != null) {
                try {
                    return method.invoke(target, arguments);
                } catch (InvocationTargetException error) {
                    throw error.getCause();
                }
            }
        }
        throw new NoSuchMethodException(target.getClass().getSimpleName() + "." + name + words);
    }

    /** The arguments in the types of the parameters; null where they do not fit. */
    private static Object[] fit(Object target, List<JsonElement> words, Class<?>[] types) throws Throwable {
        if (words.size() != types.length) {
            return null;
        }
        Object[] arguments = new Object[types.length];
        try {
            for (int i = 0; i < types.length; i++) {
                JsonElement word = words.get(i);
                arguments[i] = types[i] == RLock[].class ? locks(target, word) : GSON.fromJson(word, types[i]);
            }
        } catch (JsonParseException misfit) {
            return null;
        }
        return arguments;
    }

    /** The locks of a client, each given by the calls that make it. */
    private static RLock[] locks(Object client, JsonElement calls) throws Throwable {
        List<RLock> locks = new ArrayList<>();
        for (Calls each : GSON.fromJson(calls, Calls[].class)) {
            locks.add((RLock) each.on(client));
        }
        return locks.toArray(new RLock[0]);
    }
}
