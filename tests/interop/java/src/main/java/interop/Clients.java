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

    /** Where the server is, or some nodes of the cluster are, and the watchdog's timeout in milliseconds. */
    record Address(List<String> nodes, boolean cluster, long watchdog) {}

    RedissonClient get(Address address) {
        return clients.computeIfAbsent(address, Clients::connect);
    }

    private static RedissonClient connect(Address address) {
        Config config = new Config();
        config.setThreads(2);
        config.setNettyThreads(2);
        config.setLockWatchdogTimeout(address.watchdog());
        if (address.cluster()) {
            useFew(config.useClusterServers().addNodeAddress(address.nodes().toArray(String[]::new)));
        } else {
            config.useSingleServer()
                    .setAddress(address.nodes().get(0))
                    .setConnectionMinimumIdleSize(1)
                    .setConnectionPoolSize(4)
                    .setSubscriptionConnectionMinimumIdleSize(1)
                    .setSubscriptionConnectionPoolSize(2);
        }
        return Redisson.create(config);
    }

    private static void useFew(BaseMasterSlaveServersConfig<?> cluster) {
        cluster.setReadMode(ReadMode.MASTER)
                .setMasterConnectionMinimumIdleSize(1)
                .setMasterConnectionPoolSize(4)
                .setSubscriptionConnectionPoolSize(2);
    }
}
