//! Options: sources, precedence, types, errors, provenance.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use hive::config::{ConfigSpec, Flag, FlagValue, Foreign, Kind, Origin, Parsed, Source, Values};
use hive::prelude::*;
use hive::{HiveBuilder, HiveError, Setting, Settings};
use ipnetwork::IpNetwork;
use tempfile::TempDir;

#[derive(Debug, PartialEq)]
enum Mode {
    Native,
    Tunnel,
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "native" => Ok(Mode::Native),
            "tunnel" => Ok(Mode::Tunnel),
            other => Err(format!("no mode `{other}`")),
        }
    }
}

#[derive(hive::Config, Debug)]
struct Options {
    /// Serve IPv4
    #[flag(default = true)]
    enable_ipv4: bool,
    /// Name of the cluster
    #[flag(default = "default")]
    cluster_name: String,
    #[flag(name = "mtu", default = 1500, unit = "bytes")]
    device_mtu: u16,
    #[flag(default = -1)]
    offset: i64,
    #[flag(default = 0.0025)]
    ratio: f64,
    /// How long to wait,
    /// at most
    #[flag(default = Duration::from_secs(90))]
    wait: Duration,
    devices: Vec<String>,
    #[flag(default = "a=b")]
    labels: BTreeMap<String, String>,
    #[flag(default = "10.0.0.1")]
    address: IpAddr,
    range: Option<IpNetwork>,
    #[flag(default = "tunnel", parse = "native or tunnel")]
    mode: Mode,
    #[flag(file_only, hidden)]
    enable_source_ip_verification: bool,
    #[flag(alias = "monitor-aggregation-level", default = "none", hidden)]
    monitor_aggregation: String,
}

fn builder() -> HiveBuilder {
    let cells = [config::<Options>(), provide(|c: Config<Options>| c.0), invoke(|_: Arc<Options>| ())];
    Hive::builder(cells).config_files()
}

async fn read(builder: HiveBuilder) -> (Arc<Options>, Arc<Settings>) {
    let mut hive = builder.build().unwrap();
    hive.populate().await.unwrap();
    (hive.get().unwrap(), hive.settings().clone())
}

fn faults(builder: HiveBuilder) -> Vec<String> {
    match builder.build() {
        Err(HiveError::Config(errors)) => errors.iter().map(ToString::to_string).collect(),
        Err(other) => panic!("{other}"),
        Ok(_) => vec![],
    }
}

fn folder(files: &[(&str, &str)]) -> TempDir {
    let dir = TempDir::new().unwrap();
    for (name, text) in files {
        fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

fn flag(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

#[tokio::test]
async fn defaults() {
    let (options, settings) = read(builder()).await;
    assert!(options.enable_ipv4 && !options.enable_source_ip_verification);
    assert_eq!((options.cluster_name.as_str(), options.device_mtu, options.offset), ("default", 1500, -1));
    assert_eq!((options.ratio, options.wait), (0.0025, Duration::from_secs(90)));
    assert!(options.devices.is_empty() && options.range.is_none());
    assert_eq!(options.labels, BTreeMap::from([("a".to_owned(), "b".to_owned())]));
    assert_eq!((options.address, &options.mode), (IpAddr::from([10, 0, 0, 1]), &Mode::Tunnel));
    assert_eq!(options.monitor_aggregation, "none");
    assert_eq!(settings.get("wait").unwrap().value, "1m30s");
    assert!(settings.iter().all(|setting| setting.source == Source::Default));
    assert_eq!(settings.iter().count(), 15, "13 of the struct, config and config-dir");
}

#[tokio::test]
async fn every_type_from_a_folder() {
    let dir = folder(&[
        ("enable-ipv4", "F\n"),
        ("cluster-name", "123"),
        ("MTU", "0x5dc"),
        ("offset", "-7"),
        ("ratio", "1e-3"),
        ("wait", "1000000000"),
        ("devices", "eth0,eth1"),
        ("labels", "{\"k\": \"v\"}"),
        ("address", "fd00::1"),
        ("range", "10.1.0.0/16"),
        ("mode", "native"),
        ("enable-source-ip-verification", "true"),
        ("monitor-aggregation-level", "medium"),
    ]);
    let (options, settings) = read(builder().args([flag("config-dir", dir.path())])).await;
    assert!(!options.enable_ipv4 && options.enable_source_ip_verification);
    assert_eq!((options.cluster_name.as_str(), options.device_mtu, options.offset), ("123", 1500, -7));
    assert_eq!((options.ratio, options.wait), (0.001, Duration::from_secs(1)));
    assert_eq!(options.devices, ["eth0", "eth1"]);
    assert_eq!(options.labels, BTreeMap::from([("k".to_owned(), "v".to_owned())]));
    assert_eq!(options.address, "fd00::1".parse::<IpAddr>().unwrap());
    assert_eq!(options.range, Some("10.1.0.0/16".parse().unwrap()));
    assert_eq!((&options.mode, options.monitor_aggregation.as_str()), (&Mode::Native, "medium"));
    let mtu = settings.get("mtu").unwrap();
    assert_eq!((mtu.value.as_str(), &mtu.source), ("1500", &Source::Directory(dir.path().join("MTU"))));
}

#[tokio::test]
async fn a_mounted_config_map_is_followed() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("..2026_01_01");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("cluster-name"), "mounted\n").unwrap();
    std::os::unix::fs::symlink("..2026_01_01", dir.path().join("..data")).unwrap();
    std::os::unix::fs::symlink("..data/cluster-name", dir.path().join("cluster-name")).unwrap();
    let (options, settings) = read(builder().args([flag("config-dir", dir.path())])).await;
    assert_eq!(options.cluster_name, "mounted");
    assert_eq!(settings.unknown(), []);
}

#[tokio::test]
async fn precedence() {
    let dir = folder(&[("cluster-name", "dir"), ("mtu", "1"), ("offset", "1"), ("wait", "1s")]);
    let file = folder(&[(
        "c.yaml",
        "cluster-name: file\nmtu: 2\noffset: 2\nlabels: {x: y}\ndevices: [a, b]\nwait:\n",
    )]);
    let dir_flag = flag("config-dir", dir.path());
    let file_flag = flag("config", &file.path().join("c.yaml"));
    let env =
        [("CILIUM_MTU", "3"), ("CILIUM_OFFSET", "3"), ("CILIUM_CLUSTER_NAME", ""), ("OTHER_WAIT", "9s")];

    let (options, _) = read(builder().args([&dir_flag])).await;
    assert_eq!((options.cluster_name.as_str(), options.device_mtu, options.offset), ("dir", 1, 1));

    // The file replaces the folder as a whole.
    let (options, settings) = read(builder().args([&dir_flag, &file_flag])).await;
    assert_eq!((options.cluster_name.as_str(), options.device_mtu, options.offset), ("file", 2, 2));
    assert_eq!(options.wait, Duration::from_secs(90));
    assert_eq!((options.devices.len(), options.labels["x"].as_str(), options.labels.len()), (2, "y", 1));
    assert_eq!(settings.get("mtu").unwrap().source, Source::File(file.path().join("c.yaml")));

    // An empty variable counts as not set.
    let (options, settings) = read(builder().args([&dir_flag, &file_flag]).env("CILIUM_", env)).await;
    assert_eq!((options.cluster_name.as_str(), options.device_mtu, options.offset), ("file", 3, 3));
    assert_eq!(settings.get("mtu").unwrap().source, Source::Environment("CILIUM_MTU".to_owned()));

    let args = [dir_flag.as_str(), &file_flag, "--offset", "4"];
    let (options, settings) = read(builder().args(args).env("CILIUM_", env)).await;
    assert_eq!((options.device_mtu, options.offset), (3, 4));
    assert_eq!(settings.get("offset").unwrap().source, Source::Flag);

    let (options, settings) = read(builder().args(args).set("offset", 5)).await;
    assert_eq!((options.offset, &settings.get("offset").unwrap().source), (5, &Source::Program));

    // The folder may be named by a variable, too.
    let by_env = [("CILIUM_CONFIG_DIR", dir.path().display().to_string())];
    let (options, _) = read(builder().env("CILIUM_", by_env)).await;
    assert_eq!(options.cluster_name, "dir");
}

#[tokio::test]
async fn the_command_line() {
    let args = [
        "hive",
        "--enable-ipv4=false",
        "--devices",
        "a,b",
        "--devices=c",
        "--labels=a=1,2,b=3",
        "--labels",
        "c=4",
        "--mtu=1",
        "--mtu=9",
        "dot-graph",
        "--",
        "--not-a-flag",
    ];
    let hive = builder().args(args).build().unwrap();
    assert_eq!(hive.arguments().words, ["hive", "dot-graph", "--not-a-flag"]);
    let (options, _) = read(builder().args(args)).await;
    assert_eq!((options.enable_ipv4, options.device_mtu), (false, 9));
    assert_eq!(options.devices, ["a", "b", "c"]);
    let labels: Vec<_> = options.labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(labels, [("a", "1,2"), ("b", "3"), ("c", "4")]);
    assert!(builder().args(["-h"]).build().unwrap().arguments().help);
    for name in ["help", "version"] {
        let foreign = [Foreign::new(name, Kind::Bool)];
        let hive = builder().foreign(foreign).args([format!("--{name}")]).build().unwrap();
        assert_eq!((hive.arguments().help, hive.arguments().version), (name == "help", name == "version"));
    }

    assert_eq!(
        faults(builder().args([
            "--mtuu=1",
            "-x",
            "--wait=5",
            "--enable-source-ip-verification",
            "--cluster-name"
        ])),
        [
            "unknown flag: --mtuu (did you mean --mtu?)",
            "unknown shorthand flag: -x",
            "unknown flag: --enable-source-ip-verification",
            "flag needs an argument: --cluster-name",
            "command line: option wait: \"5\" is not a duration (such as 300ms, 30s, 1h15m) (missing unit)",
        ]
    );
}

#[test]
fn bad_values_name_file_key_value_and_valid_values() {
    let dir = folder(&[
        ("enable-ipv4", "yes"),
        ("mtu", "70000"),
        ("offset", ""),
        ("ratio", "many"),
        ("wait", "5 minutes"),
        ("labels", "x"),
        ("address", "10.0.0.256"),
        ("range", "10.0.0.0/33"),
        ("mode", "fast"),
        ("cluster-name", "fine"),
    ]);
    let at = |name: &str| format!("file {}: option {name}: ", dir.path().join(name).display());
    assert_eq!(
        faults(builder().args([flag("config-dir", dir.path())])),
        [
            at("address") + "\"10.0.0.256\" is not an IP address (invalid IP address syntax)",
            at("enable-ipv4") + "\"yes\" is not a bool (true, false, 1, 0, t, f)",
            at("labels")
                + "\"x\" is not a list of key=value separated by commas, or a JSON object (\"x\" has no =)",
            at("mode") + "\"fast\" is not native or tunnel (no mode `fast`)",
            at("mtu") + "\"70000\" is not an integer from 0 to 65535",
            at("offset") + "\"\" is not an integer",
            at("range") + "\"10.0.0.0/33\" is not a CIDR (invalid address: 10.0.0.0/33)",
            at("ratio") + "\"many\" is not a number",
            at("wait")
                + "\"5 minutes\" is not a duration (such as 300ms, 30s, 1h15m) (unknown unit \" minutes\")",
        ]
    );
}

#[test]
fn missing_and_broken_places() {
    assert_eq!(
        faults(builder().args(["--config-dir=/nonexistent/x"])),
        ["Non-existent configuration directory /nonexistent/x"]
    );
    let dir = folder(&[("c.toml", "a = 1"), ("c.yaml", "a: [1"), ("l.yaml", "- a"), ("empty.yaml", "")]);
    let fault = |name: &str| faults(builder().args([flag("config", &dir.path().join(name))]));
    let path = |name: &str| dir.path().join(name).display().to_string();
    assert_eq!(
        fault("c.toml"),
        [format!("configuration file {}: its name must end in .yaml, .yml or .json", path("c.toml"))]
    );
    assert!(fault("c.yaml")[0].starts_with(&format!("configuration file {}: ", path("c.yaml"))));
    assert!(fault("l.yaml")[0].starts_with(&format!("configuration file {}: ", path("l.yaml"))));
    assert_eq!(fault("empty.yaml"), Vec::<String>::new());
    assert!(fault("none.yaml")[0].starts_with(&format!("cannot read {}: No such file", path("none.yaml"))));
}

#[test]
fn unknown_keys_pass_and_are_reported_with_the_nearest() {
    let dir = folder(&[("cluster-nmae", "x"), ("something-else", "x")]);
    let env = [("CILIUM_ENABLE_IPV5", "true"), ("CILIUM_SOCK", "x"), ("CILIUM_K8S_NAMESPACE", "x")];
    let hive = builder().args([flag("config-dir", dir.path())]).env("CILIUM_", env).build().unwrap();
    let unknown: Vec<_> =
        hive.settings().unknown().iter().map(|u| (u.key.as_str(), u.nearest.as_deref())).collect();
    assert_eq!(
        unknown,
        [
            ("enable-ipv5", Some("enable-ipv4")),
            ("cluster-nmae", Some("cluster-name")),
            ("something-else", None)
        ]
    );
}

#[test]
fn foreign_options_are_checked_but_have_no_effect() {
    let foreign = || {
        let table = [
            ("enable-bgp", "bool", "", false),
            ("bgp-port", "uint16", "", false),
            ("bgp-wait", "duration", "5m", false),
            ("bgp-secret", "string", "", true),
            ("enable-ipv4", "bool", "", false),
        ];
        table.map(|(name, kind, default, file_only)| {
            let kind = Kind::from_name(kind).unwrap();
            Foreign::new(name, kind).with_default(default).with_file_only(file_only)
        })
    };
    let dir = folder(&[("enable-bgp", "true"), ("enable-ipv4", "false"), ("bgp-prot", "1")]);
    let args = [flag("config-dir", dir.path()), "--bgp-port".to_owned(), "179".to_owned()];
    let hive = builder().foreign(foreign()).args(args).build().unwrap();
    let unused: Vec<_> =
        hive.settings().unused().iter().map(|s| (s.key.as_str(), s.value.as_str())).collect();
    assert_eq!(unused, [("bgp-port", "179"), ("enable-bgp", "true")]);
    assert_eq!(hive.settings().unknown()[0].nearest.as_deref(), Some("bgp-port"));
    assert_eq!(hive.settings().get("enable-ipv4").unwrap().value, "false");

    // Set to their defaults, in another notation.
    let dir = folder(&[("bgp-wait", "300s"), ("bgp-port", "0"), ("enable-bgp", "f"), ("bgp-secret", "")]);
    let hive = builder().foreign(foreign()).args([flag("config-dir", dir.path())]).build().unwrap();
    assert_eq!(hive.settings().unused().len(), 4);
    assert!(hive.settings().unused().iter().all(Setting::is_default));
    assert_eq!(faults(builder().foreign(foreign()).args(["--bgp-secret=x"])), ["unknown flag: --bgp-secret"]);

    let dir = folder(&[("enable-bgp", "maybe")]);
    let text = faults(builder().foreign(foreign()).args([flag("config-dir", dir.path())])).join("\n");
    assert!(text.ends_with("option enable-bgp: \"maybe\" is not a bool (true, false, 1, 0, t, f)"), "{text}");
}

#[test]
fn the_help_text_shows_type_unit_and_default() {
    let hive = builder().build().unwrap();
    let line = |name: &str| {
        let flag = format!("--{name} ");
        hive.usage().lines().find(|line| line.trim_start().starts_with(&flag)).map(str::trim)
    };
    assert_eq!(line("enable-ipv4"), Some("--enable-ipv4 bool        Serve IPv4 (default true)"));
    assert_eq!(line("mtu"), Some("--mtu uint16               [bytes] (default 1500)"));
    assert_eq!(line("wait"), Some("--wait duration           How long to wait, at most (default 1m30s)"));
    assert_eq!(line("enable-source-ip-verification"), None);
    assert_eq!(line("monitor-aggregation"), None);
}

#[derive(Debug, PartialEq, Eq, hive::config::FlagValue)]
enum Routing {
    Native,
    #[flag(name = "tunnel-all")]
    Tunnel,
}

#[derive(Debug, PartialEq)]
struct Ports(u16, u16);

impl FlagValue for Ports {
    const KIND: Kind = Vec::<String>::KIND;
    const ZERO: &'static str = "1,2";
    const EXPECTED: Option<&'static str> = Some("two ports separated by a comma");

    fn take(value: &Parsed<'_>) -> Result<Self, String> {
        let ports: Option<Vec<u16>> =
            Vec::<String>::take(value)?.iter().map(|port| port.parse().ok()).collect();
        match ports.as_deref() {
            Some([first, last]) => Ok(Ports(*first, *last)),
            _ => Err(String::new()),
        }
    }

    fn render(&self) -> String {
        format!("{},{}", self.0, self.1)
    }
}

#[derive(Debug, hive::Config)]
#[config(check = |_: &Self| Err("never right".to_owned()))]
struct Typed {
    routing: Routing,
    #[flag(default = Ports(3, 4))]
    ports: Ports,
    other: Ports,
}

#[test]
fn a_struct_has_the_defaults_of_its_attributes() {
    let options = Options::default();
    assert_eq!((options.device_mtu, options.offset, options.wait), (1500, -1, Duration::from_secs(90)));
    assert_eq!(options.labels, BTreeMap::from([("a".to_owned(), "b".to_owned())]));
    assert_eq!((options.range, options.mode), (None, Mode::Tunnel));
    // The check only applies to a configuration that a hive reads.
    let typed = Typed::default();
    assert_eq!((typed.routing, typed.ports, typed.other), (Routing::Native, Ports(3, 4), Ports(1, 2)));
}

#[test]
#[should_panic = "default of option `port`: \"x\" is not two ports separated by a comma"]
fn a_default_that_is_not_of_its_type_is_an_error_of_the_graph() {
    #[derive(hive::Config)]
    #[expect(dead_code, reason = "cannot be made")]
    struct Wrong {
        #[flag(default = "x")]
        port: Ports,
    }
    Wrong::default();
}

#[test]
fn values_of_own_types_are_described() {
    let given = |args: &[&str]| faults(Hive::builder(config::<Typed>()).args(args.iter().copied()));
    assert_eq!(
        given(&["--routing=tunnel", "--ports=80"]),
        [
            "command line: option routing: \"tunnel\" is not native or tunnel-all",
            "command line: option ports: \"80\" is not two ports separated by a comma",
        ]
    );
    assert_eq!(given(&["--routing=tunnel-all"]), ["never right (set: routing=tunnel-all (command line))"]);
}

#[derive(hive::Config)]
#[config(group = "Old")]
#[expect(dead_code, reason = "seen in settings only")]
struct Old {
    /// A name of the past
    #[flag(deprecated = "set cluster-name instead", default = "x")]
    cluster: String,
    #[flag(group = "Secrets", secret, live, default = 0)]
    token: u8,
}

#[test]
fn help_shows_group_and_replacement() {
    let dir = folder(&[("monitor-aggregation-level", "low"), ("cluster", "y")]);
    let builder = Hive::builder([config::<Options>(), config::<Old>()]).config_files();
    let hive = builder.args([flag("config-dir", dir.path())]).build();
    let hive = hive.unwrap_or_else(|error| panic!("{error}"));
    let renamed: Vec<_> =
        hive.settings().renamed().iter().map(|r| (r.key.as_str(), r.now.as_str())).collect();
    assert_eq!(renamed, [("monitor-aggregation-level", "monitor-aggregation")]);
    assert_eq!(hive.settings().get("cluster").unwrap().deprecated, Some("set cluster-name instead"));
    let groups: Vec<&str> = hive.usage().lines().filter(|line| line.ends_with(':')).collect();
    assert_eq!(groups, ["Old:", "Secrets:"]);
    let shown = |text: &str| hive.usage().lines().any(|line| line.ends_with(text));
    assert!(
        shown("A name of the past (default x; deprecated: set cluster-name instead)"),
        "{}",
        hive.usage()
    );
    assert!(shown(" (can be changed while running)"), "{}", hive.usage());
}

/// An option of a custom type whose value is passed in several flags.
#[test]
fn repeated_flags_are_joined_if_declared() {
    #[derive(Debug)]
    struct Pairs;
    impl FromStr for Pairs {
        type Err = String;
        fn from_str(text: &str) -> Result<Self, String> {
            let wrong = text.split(',').find(|pair| !text.is_empty() && !pair.contains('='));
            wrong.map_or(Ok(Pairs), |pair| Err(format!("{pair} has no =")))
        }
    }
    #[derive(hive::Config)]
    #[expect(dead_code, reason = "seen in settings only")]
    struct Log {
        #[flag(default = "", parse = "key=value, by comma", joins)]
        log_opt: Pairs,
        #[flag(default = "", parse = "key=value, by comma")]
        other: Pairs,
    }
    let given = |args: &[&str]| Hive::builder(config::<Log>()).args(args.iter().copied());
    let hive = given(&["--log-opt", "a=1", "--other=a=1", "--log-opt=b=2", "--other=b=2"]).build().unwrap();
    let value = |key| hive.settings().get(key).unwrap().value.clone();
    assert_eq!((value("log-opt"), value("other")), ("a=1,b=2".to_owned(), "b=2".to_owned()));
    assert_eq!(
        faults(given(&["--log-opt=a=1", "--log-opt=b"])),
        ["command line: option log-opt: \"a=1,b\" is not key=value, by comma (b has no =)"]
    );
}

#[test]
fn unknown_keys_are_refused_if_configured() {
    let dir = folder(&[("cluster-nmae", "x")]);
    let env = [("CILIUM_ENABLE_IPV5", "true"), ("CILIUM_K8S_NAMESPACE", "x")];
    let built =
        |origin| builder().args([flag("config-dir", dir.path())]).env("CILIUM_", env).refuse_unknown(origin);
    let at = dir.path().join("cluster-nmae").display().to_string();
    assert_eq!(
        faults(built(Origin::Files)),
        [format!("file {at}: unknown option cluster-nmae (did you mean cluster-name?)")]
    );
    assert_eq!(
        faults(built(Origin::Environment)),
        ["environment variable CILIUM_ENABLE_IPV5: unknown option enable-ipv5 (did you mean enable-ipv4?)"]
    );
}

#[tokio::test]
async fn a_usual_file_replaces_the_folder() {
    let dir = folder(&[("cluster-name", "dir")]);
    let home = folder(&[("cilium.json", "{\"mtu\": 9}")]);
    let usual = ["cilium.yaml", "cilium.json"].map(|name| home.path().join(name));
    let builder = builder().usual_config_files(usual).args([flag("config-dir", dir.path())]);
    let (options, _) = read(builder).await;
    assert_eq!((options.cluster_name.as_str(), options.device_mtu), ("default", 9));
}

#[test]
fn settings_know_the_source_of_each_value() {
    let hive = builder().args(["--mtu=9"]).build().unwrap();
    let setting = |key| hive.settings().get(key).map(|s| (s.value.as_str(), s.source.clone())).unwrap();
    assert_eq!(setting("mtu"), ("9", Source::Flag));
    assert_eq!(setting("wait").1, Source::Default);
}

#[tokio::test]
async fn test_hives_set_options() {
    let mut hive =
        TestHive::new([config::<Options>(), invoke(|c: Config<Options>| assert_eq!(c.device_mtu, 9000))])
            .set("mtu", 9000);
    hive.start().await;
    hive.stop().await;
    let error = TestHive::new(config::<Options>()).set("mtuu", 1).try_start().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "1 fault in the configuration:\n  - set by the program: unknown option mtuu (did you mean mtu?)"
    );
}

#[test]
fn a_program_has_defaults_of_its_own() {
    #[derive(hive::Config)]
    struct Socket {
        #[flag(default = "/run/theirs.sock")]
        socket_path: String,
        #[flag(default = 7)]
        socket_backlog: u16,
    }
    let builder = || {
        let see = invoke(|socket: Config<Socket>| drop((socket.socket_path.clone(), socket.socket_backlog)));
        Hive::builder([config::<Socket>(), see])
    };
    let hive = builder().preset("socket-path", "/run/ours.sock").build().unwrap();
    let setting = hive.settings().get("socket-path").unwrap();
    assert_eq!(
        (setting.value.as_str(), setting.source.to_string()),
        ("/run/ours.sock", "default".to_owned())
    );
    assert!(hive.usage().contains("(default /run/ours.sock)"), "{}", hive.usage());
    // All other sources still have precedence.
    let hive = builder().preset("socket-path", "/a").args(["--socket-path=/b"]).build().unwrap();
    assert_eq!(hive.settings().get("socket-path").unwrap().value, "/b");

    let fault =
        |option: &str, default: &str| builder().preset(option, default).build().err().unwrap().to_string();
    let text = fault("socket-pat", "x");
    assert!(
        text.contains("default of option `socket-pat`: no cell declares it; did you mean `socket-path`?"),
        "{text}"
    );
    assert!(text.contains("declared by HiveBuilder::preset (hive/tests/all/config.rs:"), "{text}");
    let text = fault("socket-backlog", "many");
    assert!(text.contains("default of option `socket-backlog`: \"many\" is not"), "{text}");
    assert!(text.contains("HiveBuilder::preset (hive/tests/all/config.rs:"), "{text}");
}

/// Options without the derive, by the constructor that keeps other properties at their defaults.
struct ByHand {
    level: u8,
    password: String,
}

impl ConfigSpec for ByHand {
    fn flags() -> Vec<Flag> {
        let mut level = Flag::new("level", u8::KIND, |value| u8::take(value).map(drop));
        level.default = "3".to_owned();
        level.short = Some('l');
        let mut password = Flag::new("password", String::KIND, |value| String::take(value).map(drop));
        password.secret = true;
        vec![level, password]
    }

    fn from_values(values: &Values<'_>) -> Result<Self, hive::ConfigError> {
        let config = ByHand { level: values.get("level")?, password: values.get("password")? };
        // A value may be a secret: none is shown.
        assert_eq!(format!("{values:?}"), "Values { .. }");
        Ok(config)
    }
}

#[test]
fn options_are_declared_without_the_derive() {
    let build = |args: &[&str]| Hive::builder(config::<ByHand>()).args(args.to_vec()).build();
    let defaults = build(&[]).unwrap().config::<ByHand>().unwrap();
    assert_eq!((defaults.level, defaults.password.as_str()), (3, ""));
    let hive = build(&["-l", "9", "--password=hunter2"]).unwrap();
    let given = hive.config::<ByHand>().unwrap();
    assert_eq!((given.level, given.password.as_str()), (9, "hunter2"));
    assert!(build(&["-l", "300"]).is_err());
    let shown = format!("{hive:?} {:?} {:?}", hive.settings(), ByHand::flags());
    assert!(shown.contains("password") && !shown.contains("hunter2"), "{shown}");
}
