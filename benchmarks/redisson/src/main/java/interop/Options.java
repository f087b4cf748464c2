package interop;

import java.lang.reflect.Method;
import java.lang.reflect.Proxy;

/** Setters of Redisson's configuration by name: versions differ in which there are, and on which class. */
final class Options {
    private Options() {}

    /** Call a setter on the first of the objects that has it. */
    static void set(String name, String value, Object... configs) {
        for (Object config : configs) {
            for (Method method : config.getClass().getMethods()) {
                if (method.getName().equals(name) && method.getParameterCount() == 1) {
                    call(method, config, convert(value, method.getParameterTypes()[0]));
                    return;
                }
            }
        }
        throw new IllegalArgumentException("Redisson has no " + name);
    }

    private static void call(Method method, Object target, Object argument) {
        try {
            method.invoke(target, argument);
        } catch (ReflectiveOperationException error) {
            throw new IllegalArgumentException(method.getName(), error);
        }
    }

    private static Object convert(String value, Class<?> type) {
        if (type.isEnum()) {
            for (Object constant : type.getEnumConstants()) {
                if (constant.toString().equals(value)) {
                    return constant;
                }
            }
            throw new IllegalArgumentException(type.getSimpleName() + "." + value);
        }
        if (type.getSimpleName().equals("Codec")) {
            return made(value);
        }
        return type.isInterface() ? prefixing(value, type) : value;
    }

    private static Object made(String className) {
        try {
            return Class.forName(className).getDeclaredConstructor().newInstance();
        } catch (ReflectiveOperationException error) {
            throw new IllegalArgumentException(className, error);
        }
    }

    /** A NameMapper, whose package differs between versions. */
    private static Object prefixing(String prefix, Class<?> mapper) {
        return Proxy.newProxyInstance(mapper.getClassLoader(), new Class<?>[] {mapper}, (self, method, arguments) -> {
            String name = (String) arguments[0];
            if (name == null) {
                return null;
            }
            return switch (method.getName()) {
                case "map" -> prefix + name;
                default -> name.startsWith(prefix) ? name.substring(prefix.length()) : name;
            };
        });
    }
}
