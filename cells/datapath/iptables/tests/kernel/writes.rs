//! The rules that the agent writes, keeps and repairs.

use super::*;

#[test]
fn a_start_writes_and_a_restart_does_not() {
    require_programs!();
    for backend in BACKENDS {
        let sandbox = sandbox(backend);
        let host = sandbox.host();
        let [v4, v6] = tools(backend);
        let foreign = "*nat\n:MINE - [0:0]\n-A POSTROUTING -s 198.51.100.0/24 -j MINE\nCOMMIT\n\
                       *filter\n-A INPUT -s 198.51.100.1/32 -j DROP\nCOMMIT\n";
        restore(&sandbox, &v4, foreign);
        let before = saved(host, &v4);
        with_rules(&[], async |hive| {
            assert_eq!(hive.logs().iter().filter(|log| log.message.contains(WRITTEN)).count(), 2);
            assert!(hive.get::<HostMark>().is_set());
            let message = report(hive).0;
            assert!(message.contains(if backend == "nft" { "(nf_tables)" } else { "(legacy)" }), "{message}");
        });
        let (first, first_v6) = (saved(host, &v4), saved(host, &v6));
        assert_eq!((own_chains(&first), own_chains(&first_v6)), (10, 7), "{backend}");
        assert_eq!(first.rules("filter", "INPUT").unwrap()[1..], *before.rules("filter", "INPUT").unwrap());
        assert_eq!(first.rules("nat", "POSTROUTING").unwrap().len(), 2);
        assert!(first.rules("nat", "CILIUM_POST_nat").unwrap()[0].ends_with("-j MASQUERADE"));
        with_rules(&[], async |hive| {
            assert!(!hive.has_logged(LogLevel::INFO, WRITTEN), "{:?}", hive.logs());
            assert!(hive.get::<HostMark>().is_set());
        });
        assert_eq!((saved(host, &v4), saved(host, &v6)), (first, first_v6));
        // Options that forbid all rules remove them, and only them.
        block_on(async {
            let mut hive = self::hive(&[("install-iptables-rules", "false")]);
            hive.start().await;
            hive.until("rules are removed", || report(&hive).0.starts_with("Off by")).await;
            assert!(!hive.get::<HostMark>().is_set());
            hive.stop().await;
        });
        let after = saved(host, &v4);
        assert_eq!(own_chains(&after) + own_chains(&saved(host, &v6)), 0);
        for (table, chain) in before.chains() {
            assert_eq!(after.rules(table, chain), before.rules(table, chain), "{backend} {table} {chain}");
        }
    }
}

/// Tables are written one after the other: a kill leaves the first of them, in both orders.
#[test]
fn a_start_completes_what_a_kill_has_left() {
    require_programs!();
    for backend in BACKENDS {
        let sandbox = sandbox(backend);
        let host = sandbox.host();
        let [v4, v6] = tools(backend);
        with_rules(&[], async |_| {});
        let whole = saved(host, &v4);
        let text = host.exec(&format!("{v4}-save")).unwrap();
        for left in ["filter", "mangle", "nat", "raw"] {
            for tool in [&v4, &v6] {
                for table in ["filter", "mangle", "nat", "raw"].into_iter().filter(|table| *table != left) {
                    host.exec(&format!("{tool} -t {table} -F")).unwrap();
                    host.exec(&format!("{tool} -t {table} -X")).unwrap();
                }
            }
            if backend == "legacy" {
                restore(
                    &sandbox,
                    &v4,
                    "*filter\n:KUBE-FORWARD - [0:0]\n-A FORWARD -j KUBE-FORWARD\nCOMMIT\n",
                );
            }
            with_rules(&[], async |hive| assert!(hive.has_logged(LogLevel::INFO, WRITTEN)));
            let now = saved(host, &v4);
            for (table, chain) in whole.chains().filter(|(_, chain)| chain.starts_with("CILIUM_")) {
                assert_eq!(
                    now.rules(table, chain),
                    whole.rules(table, chain),
                    "{backend} {left} {chain}\n{text}"
                );
            }
            assert_eq!(own_chains(&saved(host, &v6)), 7);
        }
    }
}

#[test]
fn changes_by_hand_are_repaired_at_once() {
    require_programs!();
    let sandbox = sandbox("nft");
    let host = sandbox.host().clone();
    with_rules(&[], async |hive| {
        let [v4, v6] = tools("nft");
        let whole = (saved(&host, &v4), saved(&host, &v6));
        for change in [
            "iptables-nft -t nat -F CILIUM_POST_nat",
            "iptables-nft -D CILIUM_OUTPUT 1",
            "iptables-nft -I CILIUM_FORWARD -i lxc+ -j DROP",
            "iptables-nft -t mangle -F PREROUTING",
            "iptables-nft -t raw -F",
            "ip6tables-nft -F",
            "nft delete table ip nat",
            "nft flush ruleset",
        ] {
            host.exec(change).unwrap();
            hive.until(change, || (saved(&host, &v4), saved(&host, &v6)) == whole).await;
        }
        assert!(hive.has_logged(LogLevel::INFO, REPAIRED));
        hive.until("the mark is set again", || hive.get::<HostMark>().is_set()).await;
        // A rule of another program before ours is not fought about.
        host.exec("iptables-nft -I INPUT -s 198.51.100.1/32 -j DROP").unwrap();
        host.exec("iptables-nft -t raw -F CILIUM_PRE_raw").unwrap();
        hive.until("the chain is back", || {
            saved(&host, &v4).rules("raw", "CILIUM_PRE_raw") == whole.0.rules("raw", "CILIUM_PRE_raw")
        })
        .await;
        assert!(saved(&host, &v4).rules("filter", "INPUT").unwrap()[0].ends_with("-j DROP"));
    });
    // The next start puts it first again.
    with_rules(&[], async |_| {});
    let input = saved(&host, "iptables-nft");
    let input = input.rules("filter", "INPUT").unwrap();
    assert!(input[0].ends_with("-j CILIUM_INPUT") && input[1].ends_with("-j DROP"), "{input:?}");
}

#[test]
fn rules_in_the_other_backend_are_removed_after_ours_are_in_force() {
    require_programs!();
    let sandbox = sandbox("nft");
    let host = sandbox.host();
    with_rules(&[], async |_| {});
    assert_eq!(own_chains(&saved(host, "iptables-nft")), 10);
    restore(&sandbox, "iptables-legacy", "*filter\n:KUBE-FORWARD - [0:0]\nCOMMIT\n");
    with_rules(&[], async |_| {});
    assert_eq!(own_chains(&saved(host, "iptables-legacy")), 10);
    assert_eq!(own_chains(&saved(host, "iptables-nft")) + own_chains(&saved(host, "ip6tables-nft")), 0);
}

#[test]
fn a_held_lock_and_missing_programs_are_named_and_waited_for() {
    require_programs!();
    let sandbox = sandbox("legacy");
    let lock = fs::File::create("/run/xtables.lock").unwrap();
    lock.lock().unwrap();
    let host = sandbox.host().clone();
    let options = [("iptables-lock-timeout", "1s"), ("enable-ipv6", "false")];
    block_on(async {
        let mut hive = hive(&options);
        hive.start().await;
        let error = || report(&hive).1;
        hive.until("the lock is named", || error().contains("holds the lock of iptables")).await;
        assert!(!hive.get::<HostMark>().is_set());
        drop(lock);
        hive.until("the rules are written", || report(&hive).0.contains("in force (")).await;
        assert_eq!(own_chains(&saved(&host, "iptables-legacy")), 10);
        hive.stop().await;

        host.exec("mount -t tmpfs tmpfs /usr/sbin").unwrap();
        let mut hive = self::hive(&options);
        hive.start().await;
        let error = || report(&hive).1;
        hive.until("the program is named", || error().starts_with("iptables is not installed: install "))
            .await;
        host.exec("umount /usr/sbin").unwrap();
        hive.until("the program is found", || report(&hive).0.contains("in force (")).await;
        assert!(hive.get::<HostMark>().is_set());
        hive.stop().await;
    });
}

#[tokio::test]
async fn modes_without_a_range_of_pods_need_devices() {
    let cells = || {
        [
            statedb::cell(),
            config::<FamilyConfig>(),
            devices::cell(),
            local_node::testing::row(node()),
            invoke(|_: Arc<LocalNodeStore>| {}),
            node_manager::testing::given(vec![]),
            tunnel::cell(),
            masquerade::cell(),
            iptables::cell(),
        ]
    };
    require_root!();
    let sandbox = sandbox("nft");
    let hive = |interfaces: &str| {
        TestHive::needing::<HostMark>(cells())
            .set("ipam", "delegated-plugin")
            .set("egress-masquerade-interfaces", interfaces)
    };
    let mut without = hive("");
    without.start().await;
    let status = without.health("iptables.masquerade");
    assert_eq!(status.level, Level::Degraded);
    assert!(status.error.contains("set egress-masquerade-interfaces"), "{status:?}");
    without.stop().await;
    let mut with = hive("eth0");
    with.start().await;
    with.until("rules are in force", || report(&with).0.contains("in force (")).await;
    with.stop().await;
    drop(sandbox);
}
