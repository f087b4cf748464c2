"""Redisson's test classes and their tests: docs/design/redisson-tests.md has a section for each, and a row for each."""

NAMES: dict[str, str] = {
    "RedissonLockTest": """
        testSubscriptionsPerConnection testSinglePubSub testLockIsNotRenewedAfterInterruptedTryLock testRedisFailed
        testRemainTimeToLive2 testTryLockWait testLockUninterruptibly testForceUnlock testExpire
        testRemainTimeToLive testInCluster testAutoExpire testGetHoldCount testIsHeldByCurrentThreadOtherThread
        testIsHeldByCurrentThread testIsLockedOtherThread testLockFailoverInCluster testIsLocked testUnlockFail
        testLockUnlock testReentrancy testConcurrencyTryLockUnLock testConcurrency_SingleInstance
        testConcurrencyLoop_MultiInstance testConcurrency_MultiInstance testLockListener
    """,
    "RedissonFairLockTest": """
        testLeaseTimeout testMultipleLocks testWaitTimeoutDrift testLockAcquiredTimeoutDrift
        testAcquireFailedTimeoutDrift_Descrete testLockAcquiredBooleanTimeoutDrift_Descrete
        testLockAcquiredTimeoutDrift_Descrete testAbandonedTimeoutDrift_Descrete testFirstThreadDeathTimeoutDrift
        testTryLockNonDelayed testTryLockWait testForceUnlock testExpire testAutoExpire testGetHoldCount
        testIsHeldByCurrentThreadOtherThread testIsHeldByCurrentThread testIsLockedOtherThread testIsLocked
        testUnlockFail testLockUnlock testReentrancy testConcurrency_SingleInstance
        testConcurrencyLoop_MultiInstance testConcurrency_MultiInstance testConcurrency_MultiInstance_Ordering
        testNameMapper testAcquireFailedNotCalledOnRedisTimeout
    """,
    "RedissonReadWriteLockTest": """
        testReadLockExpiration testReadLockIsLocked testReadLockExpirationRenewal testName
        testWriteLockExpiration testInCluster testReadLockLeaseTimeoutDiffThreadsWRR
        testReadLockLeaseTimeoutDiffThreadsRRW testReadLockLeaseTimeout testWR testWriteRead
        testWriteReadReentrancy testWriteLock testMultiRead testForceUnlock testReadWriteTTL testExpireRead
        testExpireWrite testAutoExpire testHoldCount testIsHeldByCurrentThreadOtherThread
        testIsHeldByCurrentThread testIsLockedOtherThread testIsLocked testUnlockFail testLockUnlock
        testReentrancy testConcurrency_SingleInstance testConcurrencyLoop_MultiInstance
        testConcurrency_MultiInstance testMultiInstanceReadLockZombieCleanup
        testMultiInstanceZombieReadLockPerformance
    """,
    "RedissonMultiLockTest": """
        testLockUnlock testWaitAndLeaseTimeouts testMultiThreads test
    """,
    "RedissonRedLockTest": """
        testLockLeasetimeWithMilliSeconds testLockLeasetimeWithSeconds testLockLeasetimeWithMinutes
        testTryLockLeasetime testLockFailed testLockSuccess2 testLockSuccess testConnectionFailed testMultiThreads
        test
    """,
    "RedissonFencedLockTest": """
        testTokenIncrease
    """,
    "RedissonSpinLockTest": """
        testRedisFailed testTryLockWait testLockUninterruptibly testForceUnlock testExpire testInCluster
        testAutoExpire testGetHoldCount testIsHeldByCurrentThreadOtherThread testIsHeldByCurrentThread
        testIsLockedOtherThread testIsLocked testUnlockFail testLockUnlock testReentrancy
        testConcurrency_SingleInstance testConcurrencyLoop_MultiInstance testConcurrency_MultiInstance
        testTryLockAsync testTimedTryLockAsync testTryLockAsyncWaitTime testTryLockAsyncFailed
        testTryLockAsyncSucceed
    """,
    "LockOptionsTest": """
        testExponentialBackoff testConstantBackoff
    """,
    "NonReentrantLockTest": """
        testContendingThreadBlocksAndAcquiresOnRelease testSameThreadReacquireThrows
        testCrossInstanceSameThreadReentryThrows
    """,
    "NonReentrantFairLockTest": """
        testContendingThreadBlocksAndAcquiresOnRelease testSameThreadReacquireThrows
        testCrossInstanceSameThreadReentryThrows
    """,
    "RedissonFasterMultiLockTest": """
        testSimpleLock testReentrantLock testForceUnLock testRenewExpiration testTryLock testTryLockWait
        testIsHeldAndIsLockedByThread testSubscriptionsPerConnection testSinglePubSub
        testLockIsNotRenewedAfterInterruptedTryLock testRedisFailed testLockUnInterruptibly testExpire testInCluster
        testAutoExpire testIsHeldByCurrentThreadOtherThread testIsHeldByCurrentThread testIsLockedOtherThread
        testIsLocked testUnlockFail testReentrancy testConcurrency_SingleInstance testConcurrencyLoop_MultiInstance
        testConcurrency_MultiInstance
    """,
    "RedissonLockExpirationRenewalTest": """
        testWriteLockAfterTimeout testReadLockAfterTimeout testLockAfterTimeout testLockReentrantRenew
    """,
    "RedissonLockHeavyTest": """
        lockUnlockRLock tryLockUnlockRLock
    """,
    "RedissonLockReactiveTest": """
        testMultiLock testIsHeldByThread testLockReactiveListener
    """,
    "RedissonLockRxTest": """
        testMultiLock testIsHeldByThread testLockRxListener
    """,
    "ReadLockEntryTest": """
        shouldHaveNoThreadsAfterNonReentrantAcquireAndRelease shouldHaveNoThreadsAfterReentrantAcquireAndRelease
    """,
    "CountDownLatchPubSubTest": """
        testOnZeroMessageAllListenersExecuted
    """,
    "PublishSubscribeTest": """
        testSubscribeForRaceCondition testSubscribeNoTimeoutReleasesSemaphoreIfEntryIsMissing
    """,
    "AsyncSemaphoreTest": """
        testReleaseRacingAcquire testCancelledWaiter testRejectedForkDoesNotStrandWaiters
        testRejectedForkDoesNotLeakTasksLatch testStalledRemovalDoesNotStallPollers
        testPublishedElementIsImmediatelyPollable testCancelledWaitersDoNotRetainQueueNodes
        testRemoveListenersCompletesWaiters testCounterNeverReadsBelowZero
    """,
    "RedissonTopicTest": """
        testResubscriptionAfterFailover testReattachInSentinel3
    """,
    "RedissonSemaphoreTest": """
        testAcquireAfterAddPermits testZero testAcquireWithoutSetPermits testTrySetPermits testAddPermits
        testReducePermits testBlockingAcquire testBlockingNAcquire testTryNAcquire testReleaseWithoutPermits
        testDrainPermits testReleaseAcquire testReleaseIfExists testConcurrency_SingleInstance
        testConcurrencyLoopMax_MultiInstance testConcurrencyLoop_MultiInstance
        testConcurrency_MultiInstance_1_permits
    """,
    "RedissonPermitExpirableSemaphoreTest": """
        testGetInClusterNameMapper testUpdateLeaseTime testNotExistent testAvailablePermits
        testAcquiredPermits testGetPermits testExpiration testExpire testExpireTryAcquire testTrySetPermits
        testSetPermits testAddPermits testBlockingAcquire testBlockingAcquireMany testTryAcquire
        testTryAcquireMany testReleaseWithoutPermits testReleaseExpired testConcurrency_SingleInstance
        testConcurrencyLoop_MultiInstance testAcquire testRelease testAcquireAsyncMany testReleaseAsyncMany
        testReleaseManyExpiredDoesNotThrow testTryReleaseManyExpired testReleaseManyNotExistOrExpired
        testGetLeaseTime testConcurrencyMultiPermits testConcurrencyMultiPermits2
    """,
    "RedissonCountDownLatchTest": """
        testAwaitTimeout testAwaitTimeoutFail testMultiAwait testCountDown testDelete testDeleteFailed
        testTrySetCount testCount
    """,
    "RedissonCountDownLatchConcurrentTest": """
        testSingleCountDownAwait_SingleInstance
    """,
}
