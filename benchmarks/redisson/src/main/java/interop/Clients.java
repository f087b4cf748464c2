package interop;

import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.BaseMasterSlaveServersConfig;
import org.redisson.config.Config;
import org.redisson.config.ReadMode;

/** The Redisson clients of this process, one for each address; made when they are first asked for. */
final class Clients {
    private final Map<Address, RedissonClient> clients = new ConcurrentHashMap<>();

    /** Where the servers are, the watchdog's timeout in milliseconds, and names and values of other setters. */
    record Address(List<String> nodes, String mode, String service, long watchdog, List<List<String>> options) {}

    RedissonClient get(Address address) {
        return clients.computeIfAbsent(address, Clients::connect);
    }

    private static RedissonClient connect(Address address) {
        Config config = new Config();
        config.setThreads(2);
        config.setNettyThreads(2);
        config.setLockWatchdogTimeout(address.watchdog());
        Object servers = useServers(config, address, address.nodes().toArray(String[]::new));
        for (List<String> option : address.options()) {
            Options.set(option.get(0), option.get(1), config, servers);
        }
        return Redisson.create(config);
    }

    private static Object useServers(Config config, Address address, String[] nodes) {
        return switch (address.mode()) {
            case "cluster" -> useFew(config.useClusterServers().addNodeAddress(nodes));
            case "sentinel" -> useFew(
                    config.useSentinelServers()
                            .setMasterName(address.service())
                            .setCheckSentinelsList(false)
                            .addSentinelAddress(nodes));
            default -> config.useSingleServer()
                    .setAddress(nodes[0])
                    .setConnectionMinimumIdleSize(1)
                    .setConnectionPoolSize(4)
                    .setSubscriptionConnectionMinimumIdleSize(1)
                    .setSubscriptionConnectionPoolSize(2);
        };
    }

    private static Object useFew(BaseMasterSlaveServersConfig<?> servers) {
        return servers.setReadMode(ReadMode.MASTER)
                .setMasterConnectionMinimumIdleSize(1)
                .setMasterConnectionPoolSize(4)
                .setSubscriptionConnectionPoolSize(2);
    }
}
