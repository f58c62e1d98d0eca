//! The lists that the tests of the architecture compare with: layers, and exceptions with their reasons.

/// Crates by layer, from the leaf to the binary. A crate uses only crates of its own or an earlier layer.
pub(crate) const LAYERS: &[&[&str]] = &[
    &[
        "apiary-go-duration",
        "apiary-yaml",
        "fqdn",
        "token-bucket",
        "xds",
        "apiary-hive-derive",
        "apiary-hive",
        "hive-command",
        "hive-shaku",
        "cell-template",
    ],
    &[
        "apiary-statedb-derive",
        "apiary-statedb",
        "statedb-script",
        "apiary-reconciler",
        "labels",
        "netlink",
        "state-file",
        "file-watch",
        "grpc",
        "http-server",
        "logging",
        "known-options",
    ],
    &["server-tls"],
    &["metrics", "memory-limit", "policy-engine", "k8s-types"],
    &["identity-core"],
    &["api-models", "api-client", "api", "statedb-remote"],
    &["datapath-abi", "datapath-object", "bpf"],
    &["envoy-api", "hubble-api", "monitor-events"],
    &["cel"],
    &["maps", "devices", "sysctl"],
    &["tunnel", "signals"],
    &["local-node", "runtime-options", "k8s-tables", "k8s-client", "k8s-fake-apiserver", "k8s-writer"],
    &["datapath-api", "conntrack-gc", "masquerade", "monitor", "routes", "desired-devices"],
    &["identity", "k8s-node", "ciliumnode", "proxy-ports"],
    &["ipcache", "loadbalancer"],
    &[
        "ipam",
        "ipam-crd",
        "ipam-multi-pool",
        "dns-proxy",
        "policy",
        "node-manager",
        "loadbalancer-healthserver",
        "loadbalancer-port-range",
        "nat-stats",
        "loadbalancer-sockets",
    ],
    &["iptables"],
    &["endpoints"],
    // Only the agent and its commands know the implementation of `datapath-api`.
    &[
        "agent-notifications",
        "auth",
        "ciliumendpoint",
        "endpoint-routes",
        "big-tcp",
        "no-track",
        "envoy-proxy",
        "fqdn-names",
        "mtu",
        "cni-config",
        "config-sources",
        "hubble",
        "hubble-drop-events",
        "hubble-exporter",
        "hubble-metrics",
        "loadbalancer-redirectpolicy",
        "loader",
        "socket-lb",
    ],
    &["envoy-config"],
    &["daemon-config", "standalone-dns-proxy", "status"],
    &["cilium-health", "subnet"],
    &[
        "cleanup",
        "preflight",
        "node-routes",
        "neighbors",
        "operator-election",
        "operator-definitions",
        "operator-api",
        "operator-certgen",
    ],
    &["operator-objects", "operator-status"],
    &[
        "operator-endpoint-slices",
        "operator-identities",
        "operator-ipam",
        "operator-lb-ipam",
        "operator-node-taints",
        "operator-policy-status",
    ],
    &["operator-garbage-collection", "operator-secret-sync"],
    // Cells contribute commands and do not know the engine that runs them.
    &["hive-script", "hive-shell"],
    &["agent", "operator", "apiary-cni", "apiary"],
    &["test-kit", "cluster-stage", "integration-tests", "fuzz"],
];

/// Maps behind locks without readers outside of their crate; other state belongs in a table.
/// Each line: a file, and the reason for the exception.
pub(crate) const MAPS_BEHIND_LOCKS: &[(&str, &str)] = &[
    (
        "cells/infra/status/src/collector.rs",
        "when each source of the status worked last; the answer is made from it",
    ),
    (
        "cells/kubernetes/tables/src/in_memory_source.rs",
        "what a source without a server has, read by its watches alone; others read the tables",
    ),
    (
        "cells/datapath/loader/src/endpoints/conntrack_purge.rs",
        "addresses of pods that have left, until their connections are forgotten: a work queue, which nothing else reads",
    ),
    (
        "cells/datapath/loader/src/endpoints/pod_programs.rs",
        "endpoints that a switch of programs has served, until they are attached again",
    ),
    (
        "cells/datapath/loader/src/endpoints/pool.rs",
        "descriptors of policy maps that endpoints have; the maps themselves and their pins are the state",
    ),
    (
        "cells/datapath/loader/src/endpoints/table.rs",
        "settings entries as they were written, which those of the kernel are compared with; endpoints with an interface that \
         went away, until it is back or the endpoint is deleted",
    ),
    (
        "cells/datapath/maps/src/drift_checks.rs",
        "when each keeper of rows may compare again; asked once a turn by itself",
    ),
    (
        "cells/endpoint/endpoints/src/requests/creation.rs",
        "ids of endpoints that are being created, until the request has put a row into the table",
    ),
    (
        "cells/endpoint/endpoints/src/names.rs",
        "DNS names of the previous run, which fill the records that are written before the cell of names has them",
    ),
    (
        "cells/datapath/maps/src/maps.rs",
        "descriptors of maps that are opened one by one; the maps themselves are the state",
    ),
    (
        "cells/ipam/multi-pool/src/waiting.rs",
        "requests that wait for a range of their pool, counted by the job that requests ranges",
    ),
    (
        "cells/observe/hubble/src/observer.rs",
        "namespaces of flows with the time of the last one, which one request reads; a table would be written per flow",
    ),
    ("cells/proxy/dns/src/proxy.rs", "queries in flight by client, which only the limit of a client needs"),
    (
        "cells/proxy/fqdn/src/directory.rs",
        "lookups of all endpoints, which change with each answer; `GET /fqdn/cache` shows them, and a table would be written per answer",
    ),
    ("cells/proxy/envoy/src/secrets/files.rs", "secrets in files, which nothing that shows tables may show"),
    (
        "cells/proxy/envoy/src/secrets/store.rs",
        "secrets of the cluster, which nothing that shows tables may show",
    ),
    ("cells/proxy/dns/src/server.rs", "open connections by client, which only the limit of a client needs"),
    (
        "cells/proxy/standalone/src/remote.rs",
        "the agent's last snapshot and lookups on their way to it, in a process without tables",
    ),
    (
        "cells/proxy/dns/src/upstream.rs",
        "sockets with the queries that wait for their answers; the queries of a socket read it",
    ),
    (
        "cells/observe/hubble-drop-events/src/job.rs",
        "events that wait to be written; a table would be written per dropped packet",
    ),
    (
        "cells/observe/hubble-metrics/src/set.rs",
        "counters of flows that Prometheus reads as text; a table would be written per flow",
    ),
    (
        "lib/state-file/src/records.rs",
        "contents of files that wait to be written, taken by the job that writes them",
    ),
    (
        "cells/infra/metrics/src/registry.rs",
        "which metrics the operator switched; read while metrics register",
    ),
    (
        "cells/infra/metrics/src/sampler.rs",
        "samples of the last two hours, which only the shell's commands show",
    ),
];

/// Files that read the system's clock, which may jump by days: each only to show or to log a time. Whatever waits,
/// expires or is compared goes by a clock that never goes back (`Instant`, tokio's time, the kernel's
/// `CLOCK_MONOTONIC`).
pub(crate) const WALL_CLOCK: &[(&str, &str)] = &[
    (
        "cells/observe/hubble/src/clock.rs",
        "when an event arrived, in its flow, which requests ask for by time",
    ),
    (
        "cells/observe/hubble-exporter/src/clock.rs",
        "the ends of exporters, which their entries have as times, and names of rotated files",
    ),
    ("cells/config/daemon-config/src/cell.rs", "when the agent was started, in its stored configuration"),
    ("cells/policy/auth/src/authenticator.rs", "ends of certificates, which are dates"),
    ("cells/observe/agent-notifications/src/cell.rs", "when the agent was started, in its notification"),
    ("cells/endpoint/endpoints/src/gc.rs", "times in an endpoint's log"),
    ("cells/endpoint/endpoints/src/reconcile/regeneration.rs", "times in an endpoint's log"),
    ("cells/endpoint/endpoints/src/requests/creation.rs", "times in an endpoint's log"),
    ("cells/endpoint/endpoints/src/requests/description.rs", "times in an endpoint's log"),
    ("cells/endpoint/endpoints/src/requests/service.rs", "times in an endpoint's log"),
    ("cells/endpoint/endpoints/src/restore/finish.rs", "times in an endpoint's log"),
    ("cells/endpoint/endpoints/src/restore/host.rs", "times in an endpoint's log"),
    ("cells/endpoint/endpoints/src/restore/ingress.rs", "times in an endpoint's log"),
    ("cells/endpoint/endpoints/src/restore/start.rs", "times in an endpoint's log"),
    ("cells/health/cilium-health/src/cell.rs", "when the agent began to probe, in the health API"),
    (
        "cells/health/cilium-health/src/prober/run.rs",
        "when an address was probed and a cycle began, in the health API",
    ),
    ("cells/infra/status/src/cell.rs", "since when a source fails, in the status"),
    ("cells/infra/status/src/commands.rs", "how old reports are, in the tree that is shown"),
    ("cells/infra/status/src/thread.rs", "the time in the answer that kube-proxy would give"),
    ("cells/infra/status/src/watch.rs", "since when a job is stuck, in the status"),
    ("cells/kubernetes/tables/src/events.rs", "when an object was read, in its row"),
    ("cells/kubernetes/tables/src/numbers.rs", "when something was last heard of a kind, in a metric"),
    ("cells/datapath/maps/src/events.rs", "when a map was written, in `GET /map/{name}/events`"),
    ("cells/datapath/maps/src/runtime.rs", "the offset between the clocks, which programs add to theirs"),
    ("cells/reconciler/src/builder.rs", "where the times in statuses begin; they go on by tokio's clock"),
    ("cells/reconciler/src/status.rs", "times in statuses that were not made by a reconciler"),
    ("cli/src/commands/debuginfo.rs", "when a report was made"),
    ("cli/src/commands/get/mod.rs", "how long ago objects were made"),
    ("cli/src/commands/hubble/events.rs", "durations before now, in options for times"),
    ("cli/src/commands/status.rs", "how long ago something was"),
    ("cli/src/commands/sysdump/mod.rs", "the time in an archive's name"),
    ("cni/src/log.rs", "the time of a log line"),
    ("hive/src/health/mod.rs", "when a report was made"),
];

/// Files that start threads, tasks or runtimes of their own, or put a thread to sleep, and why. Everything else is a
/// job of a hive, a piece of its work (`hive::blocking`), or a reconciler.
pub(crate) const OWN_THREADS: &[(&str, &str)] = &[
    ("agent/src/build_config.rs", "the runtime of a command"),
    ("agent/src/preflight.rs", "as above"),
    ("agent/src/standalone_dns_proxy.rs", "as above"),
    ("agent/src/main.rs", "the runtime"),
    ("operator/src/main.rs", "the runtime"),
    ("cells/infra/logging/src/sink.rs", "the thread that writes the log, for as long as the process runs"),
    ("cells/operator/api/src/server.rs", "a task for each connection; the server's job waits for them"),
    ("cells/health/cilium-health/src/health_api/server.rs", "as above"),
    (
        "cells/health/cilium-health/src/endpoint/namespace.rs",
        "a thread that makes a namespace never leaves it; it ends before the call returns",
    ),
    (
        "cells/infra/api/src/cell.rs",
        "requests are completed after their client has disconnected; the server's job waits for them",
    ),
    ("cells/infra/api/src/layers.rs", "as above"),
    (
        "cells/infra/api/src/tables/mod.rs",
        "changes of a table, sent as long as the client takes them; the server's job waits",
    ),
    (
        "cells/datapath/bpf/src/object.rs",
        "programs are verified side by side; the threads end before the call returns",
    ),
    (
        "lib/http-server/src/serve.rs",
        "a task for each connection, at most as many as fit; the server's job waits for them",
    ),
    ("lib/http-server/src/probes.rs", "as above"),
    (
        "cells/datapath/conntrack-gc/src/collect.rs",
        "the rest between two chunks of rows, in `hive::blocking`",
    ),
    ("cells/datapath/conntrack-gc/src/orphans.rs", "as above"),
    ("cells/datapath/conntrack-gc/src/pace.rs", "as above"),
    ("cells/datapath/nat-stats/src/count.rs", "as above"),
    (
        "cells/infra/cleanup/src/leftover.rs",
        "waits until the kernel has freed rules that use a set, in a command without a runtime",
    ),
    ("cells/datapath/iptables/src/program.rs", "waits for a program of iptables, off the runtime's threads"),
    ("lib/netlink/src/connection.rs", "waits before an interrupted dump is repeated"),
    (
        "cells/endpoint/endpoints/src/reconcile/regeneration.rs",
        "rests a millisecond for packets in flight, on the thread of the reconciler",
    ),
    ("cells/infra/status/src/kubelet.rs", "a task for each connection, on the thread below"),
    (
        "cells/infra/status/src/thread.rs",
        "the thread that answers the kubelet when no job moves and watches the jobs themselves",
    ),
    (
        "cells/kubernetes/client/src/access.rs",
        "the library reads the files of a kubeconfig in a future that waits for nothing, in `hive::blocking`",
    ),
    (
        "cells/kubernetes/client/src/access/exec.rs",
        "waits for a command that gives credentials, off the runtime's threads",
    ),
    (
        "cells/kubernetes/fake-apiserver/src/http.rs",
        "a task for each connection of a server for tests, which runs outside of a hive",
    ),
    (
        "cells/datapath/loader/src/interfaces/controller.rs",
        "links of devices are made while programs are loaded; the thread ends before the call returns",
    ),
    (
        "cells/datapath/loader/src/programs/set.rs",
        "maps are opened side by side; the threads end before the call returns",
    ),
    (
        "cells/datapath/maps/src/maps.rs",
        "maps are made side by side; the threads end before the call returns",
    ),
    ("cells/proxy/dns/src/cell.rs", "a task for each query and connection; the proxy's job waits for them"),
    ("cells/proxy/dns/src/proxy.rs", "as above"),
    ("cells/proxy/dns/src/server.rs", "as above"),
    ("cells/proxy/dns/src/standalone.rs", "as above"),
    ("cells/proxy/dns/src/upstream.rs", "a task for each socket to a server; the proxy's job waits for them"),
    (
        "cells/proxy/envoy/src/access_log/socket.rs",
        "a task for each connection; the socket's job waits for them",
    ),
    (
        "lib/grpc/src/server.rs",
        "a task for each connection and request; the job of the socket waits for them",
    ),
    ("cells/infra/metrics/src/server.rs", "a task for each connection; the server's job waits for them"),
    (
        "cells/node/mtu/src/pod.rs",
        "a thread that enters a pod's namespace never leaves it; it ends before the call returns",
    ),
    (
        "cells/loadbalancer/sockets/src/namespaces.rs",
        "a thread that enters a pod's namespace never leaves it; it ends before the call returns",
    ),
    (
        "cells/policy/cell/src/policymap/install.rs",
        "maps of many endpoints are written side by side; the threads end before the call returns",
    ),
    ("cells/reconciler/src/blocking.rs", "a blocking thread for operations where there is no hive"),
    (
        "cells/observe/hubble-metrics/src/server.rs",
        "a task for each connection; the server's job waits for them",
    ),
    ("cells/observe/monitor/src/socket.rs", "a task for each client; the socket's job waits for them"),
    ("hive/shell/src/serve.rs", "a task for each client; the listener's job waits for them"),
    ("hive/src/job/blocking.rs", "`hive::blocking` itself"),
    ("hive/src/job/thread.rs", "the thread of a job that asks for one"),
    ("hive/src/job/progress.rs", "counts what `hive::blocking` has begun, for the job that waits for it"),
    ("hive/src/random/mod.rs", "a runtime for each random hive of the test"),
    (
        "hive/src/signals.rs",
        "the second signal and the limits end the process, whatever the hive and its runtime do",
    ),
];

/// Files that go over all options whatever struct they belong to, and why. Everything else has a configuration struct,
/// which also programs read before their hive starts (`Hive::config`).
pub(crate) const ALL_OPTIONS: &[(&str, &str)] = &[
    ("agent/src/dump.rs", "shows all options that are in force"),
    ("agent/src/options.rs", "reports options that no cell declares"),
    ("cells/infra/api/src/cell.rs", "hands them to the file below"),
    ("cells/infra/api/src/debug.rs", "shows all options for debugging"),
    ("cells/config/daemon-config/src/cell.rs", "hands them to the files below"),
    ("cells/config/daemon-config/src/cluster.rs", "asks where an option comes from"),
    (
        "cells/config/daemon-config/src/features.rs",
        "exports the choices of cells that may be absent as metrics",
    ),
    (
        "cells/config/daemon-config/src/files.rs",
        "stores the options of the configuration folder, as the original does",
    ),
    ("cells/config/daemon-config/src/names.rs", "shows all options under the original's names"),
    (
        "cells/config/daemon-config/src/runtime.rs",
        "follows options of several cells that the API changes under other names",
    ),
    (
        "cells/config/daemon-config/src/spec.rs",
        "options of several cells that the API changes under other names",
    ),
    ("cells/config/daemon-config/src/table.rs", "shows where each option comes from"),
    ("cells/infra/status/src/cell.rs", "asks whether an option was set"),
    (
        "operator/src/client.rs",
        "asks which kinds agents write, for all replicas: the leader's options are not read yet",
    ),
    ("operator/src/main.rs", "shows all options that are in force"),
    (
        "cells/operator/definitions/src/cell.rs",
        "asks which features of agents are on, which have kinds of their own",
    ),
    (
        "cells/datapath/loader/src/cell.rs",
        "asks whether devices serve services, an option of the load balancer",
    ),
    (
        "cells/datapath/loader/src/programs/balancing.rs",
        "reads how backends are chosen: options of the load balancer, which is not required",
    ),
    (
        "cells/datapath/loader/src/programs/direct_return.rs",
        "reads how backends reply to clients: options of the load balancer, which is not required",
    ),
    (
        "cells/datapath/loader/src/programs/egress.rs",
        "asks for the ports of services, options of the load balancer",
    ),
    (
        "cells/datapath/loader/src/programs/ipip.rs",
        "reads the sources of outer headers: options of the load balancer, which is not required",
    ),
    (
        "cells/datapath/loader/src/programs/nat46x64.rs",
        "reads which packets change the IP family: options of the load balancer, which is not required",
    ),
    (
        "cells/datapath/loader/src/programs/xdp.rs",
        "reads whether services are accelerated: an option of the load balancer, which is not required",
    ),
    (
        "cells/datapath/loader/src/prefilter/mod.rs",
        "asks whether XDP is on devices, an option of the load balancer",
    ),
    ("cells/datapath/big-tcp/src/cell.rs", "asks for options of other cells that it contradicts"),
    (
        "cells/datapath/iptables/src/cell.rs",
        "asks whether kube-proxy is replaced, an option of the load balancer, which is not required",
    ),
    ("cells/node/neighbors/src/cell.rs", "passes them to the file below"),
    ("cells/node/neighbors/src/config.rs", "asks whether XDP is on devices, an option of the load balancer"),
    ("cells/datapath/maps/src/cell.rs", "passes them to the file below"),
    ("cells/datapath/maps/src/specs.rs", "asks which features have maps: each is an option of its own cell"),
    ("cells/infra/preflight/src/node.rs", "passes them to the file above"),
    ("cells/infra/preflight/src/options.rs", "reports on each option, as a command"),
    (
        "cells/operator/lb-ipam/src/cell.rs",
        "asks which features of agents are on, which have classes of load balancers of their own",
    ),
    (
        "cells/operator/policy-status/src/cell.rs",
        "asks for options of agents by which policies are valid or not",
    ),
    ("cells/operator/secret-sync/src/cell.rs", "asks for the same: invalid policies need no secrets"),
    ("cells/endpoint/cni-config/src/cell.rs", "the plugin logs debug lines if the agent does"),
    (
        "cells/kubernetes/client/src/cell.rs",
        "reads which features are enabled: the server must know their kinds",
    ),
    (
        "cells/ipam/core/src/cell.rs",
        "ingress addresses are allocated early, for a cell far above: that of Envoy configurations",
    ),
];

/// Tests of cells in a hive that poll in their own loops, and why. The others wait by
/// `TestHive::until`, which has a timeout and reports log and health.
pub(crate) const OWN_WAITS: &[(&str, &str)] = &[
    (
        "cells/infra/status/tests/liveness.rs",
        "probes as the kubelet makes them: the hive's runtime is what hangs",
    ),
    ("cells/statedb/script/tests/recorded.rs", "waits for what a script shows, which has the hive meanwhile"),
    ("hive/shell/tests/shell.rs", "clients that block a thread of their own, beside the hive's"),
];

/// Files that read the process's environment or command line, and why. Everything else is an option.
pub(crate) const ENVIRONMENT: &[(&str, &str)] = &[
    ("agent/build.rs", "by which cargo passes target and profile to a build script"),
    ("agent/src/main.rs", "the home folder, where the configuration file may be"),
    ("operator/src/main.rs", "the name or the first word, which select the maker of certificates"),
    ("cells/infra/api/client/src/address.rs", "`CILIUM_SOCK`, by which all clients of Cilium find the agent"),
    (
        "cells/config/sources/src/build.rs",
        "`K8S_NODE_NAME` and `CILIUM_K8S_NAMESPACE`, as the defaults of the command `build-config`",
    ),
    ("cells/proxy/envoy/src/process/config.rs", "`PATH`, in which programs are found by their names"),
    (
        "cells/kubernetes/client/src/cell.rs",
        "`KUBERNETES_SERVICE_HOST` and `_PORT`, by which all pods find the API server",
    ),
    (
        "cells/node/local/src/host.rs",
        "`K8S_NODE_NAME`, the name that Kubernetes gives; no option of the original",
    ),
    (
        "cells/infra/metrics/src/feature.rs",
        "`CILIUM_FEATURE_METRICS_WITH_DEFAULTS`, by which the original asks for gauges of features that are off",
    ),
    ("cli/src/commands/hubble/server.rs", "`HUBBLE_SERVER`, by which clients find the server of flows"),
    ("cli/src/commands/monitor.rs", "`CILIUM_MONITOR_SOCK`, by which clients find the monitor"),
    ("cli/src/commands/health.rs", "`CILIUM_HEALTH_SOCK`, by which clients find the health API"),
    ("cli/src/main.rs", "the name by which the tool was called, which selects its function"),
    ("cni/src/invocation.rs", "the variables of the CNI specification"),
    ("cni/src/main.rs", "a plugin has no options; steps of the pod have variables of Cilium's image"),
    ("hive/src/builder.rs", "flags and variables of options: the mechanism itself"),
    ("lib/envoy-api/build.rs", "by which cargo passes the folder for generated code to a build script"),
    ("lib/hubble-api/build.rs", "by which cargo passes the folder for generated code to a build script"),
    ("hive/src/program.rs", "the program's name"),
];
