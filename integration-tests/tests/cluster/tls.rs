//! Faults of certificates and TLS: each is reported once with its remedy, and the agent continues and recovers.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use integration_tests::{Authority, Cluster, Front, Identity, Spoiler, TlsServer, Valid};
use k8s_types::schema::custom_resource_definitions;
use serde_json::{Value, json};
use test_kit::{require_root, try_wait_until};

const LIMIT: Duration = Duration::from_secs(120);

/// How long a fault persists after the report: no other effect may follow.
const STAYS: Duration = Duration::from_secs(4);

const ADDRESS: &str = "IP:127.0.0.1";

/// A cluster with an API server behind a TLS proxy that tests configure.
struct Secured {
    server: TlsServer,
    folder: PathBuf,
    authority: Authority,
    good: Identity,
    // Dropped in this order.
    _spoiler: Spoiler,
    cluster: Cluster,
    port: u16,
}

impl Secured {
    fn started() -> Self {
        let mut cluster = Cluster::new(&custom_resource_definitions());
        let folder = cluster.node.sandbox().dir().join("tls");
        fs::create_dir(&folder).unwrap();
        let spoiler = Spoiler::new(&cluster.stage, &folder);
        let authority = Authority::new(&folder, "authority");
        let good = authority.issue("server", ADDRESS, Valid::Now);
        let server = TlsServer::new(spoiler.address(), Front::tls(&good, Some(&authority)));
        let kubeconfig = folder.join("kubeconfig").to_str().unwrap().to_owned();
        cluster.node.config.insert("k8s-kubeconfig-path".to_owned(), kubeconfig);
        let mut this = Self { server, folder, authority, good, _spoiler: spoiler, cluster, port: 80 };
        this.trust(&this.authority);
        this.show(&this.authority.issue("client", "DNS:client", Valid::Now));
        this.kubeconfig(&this.server.url(), true);
        this.apply();
        this.cluster.start();
        this.cluster.until_equal();
        this.cluster.until_well();
        this
    }

    /// The agent's kubeconfig.
    fn kubeconfig(&self, server: &str, certificate: bool) {
        let file = |name: &str| self.folder.join(name).display().to_string();
        let user = match certificate {
            true => json!({"client-certificate": file("agent.crt"), "client-key": file("agent.key")}),
            false => json!({}),
        };
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority": file("ca.crt")}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": user}],
        });
        self.replace("kubeconfig", kubeconfig.to_string().as_bytes());
    }

    /// Sets the authority that the agent trusts.
    fn trust(&self, authority: &Authority) {
        self.replace("ca.crt", &fs::read(authority.certificate()).unwrap());
    }

    /// Returns the objects that the agent shows.
    fn show(&self, identity: &Identity) {
        self.replace("agent.crt", &fs::read(&identity.certificate).unwrap());
        self.replace("agent.key", &fs::read(&identity.key).unwrap());
    }

    fn replace(&self, name: &str, content: &[u8]) {
        let draft = self.folder.join("draft");
        fs::write(&draft, content).unwrap();
        fs::rename(draft, self.folder.join(name)).unwrap();
    }

    /// Changes an object.
    fn apply(&mut self) {
        self.port += 1;
        let spec = json!({"ports": [{"port": self.port}]});
        let service =
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "first"}, "spec": spec});
        self.cluster.stage.apply(&service.to_string()).unwrap();
    }

    /// Causes a fault: health and log must report these texts once. Then repairs it.
    fn withstands(
        &mut self,
        reported: &[&str],
        goes_wrong: impl FnOnce(&Self),
        is_mended: impl FnOnce(&Self),
    ) {
        let read = self.cluster.node.log().len();
        goes_wrong(self);
        let says = |text: &str| reported.iter().all(|word| text.contains(word));
        let is_told = || match self.cluster.unwell() {
            rows if rows.iter().any(|row| says(row)) => Ok(()),
            rows => Err(rows.join("\n")),
        };
        if let Err(rows) = try_wait_until(LIMIT, is_told) {
            panic!("{reported:?} is not reported:\n{rows}\n{}", &self.cluster.node.log()[read..]);
        }
        self.apply();
        thread::sleep(STAYS);
        let (rows, log) = (self.cluster.unwell(), self.cluster.node.log()[read..].to_owned());
        assert_eq!(rows.len(), 1, "{reported:?}: {rows:#?}\n{log}");
        let lines = |part: &str| log.lines().filter(|line| line.contains(part)).collect::<Vec<_>>();
        let warned = lines("level=warn");
        assert!(warned.len() == 1 && says(warned[0]), "{reported:?}\n{log}");
        assert_eq!(lines("level=error"), Vec::<&str>::new());
        // The agent continues with its existing state.
        let node = &self.cluster.node;
        let health = node.get("/v1/healthz");
        let said = health["kubernetes"]["msg"].as_str().unwrap_or_default();
        assert!(health["kubernetes"]["state"] == "Failure" && says(said), "{health}");
        let services = node.get("/statedb/dump/k8s-services");
        let port = |row: &Value| row["spec"]["ports"][0]["port"].as_u64();
        let services = services["k8s-services"].as_array().unwrap();
        assert!(services.iter().any(|row| port(row) == Some(u64::from(self.port - 1))), "{services:?}");

        is_mended(self);
        self.cluster.until_equal();
        self.cluster.until_well();
        let log = self.cluster.node.log()[read..].to_owned();
        let count = |part: &str| log.lines().filter(|line| line.contains(part)).count();
        assert_eq!((count("level=warn"), count("answers again")), (1, 1), "{reported:?}\n{log}");
    }

    /// The same for a faulty server.
    fn withstands_server(&mut self, reported: &[&str], front: Front) {
        let good = Front::tls(&self.good, Some(&self.authority));
        self.withstands(reported, |this| this.server.be(front), |this| this.server.be(good));
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn a_server_whose_certificate_is_wrong() {
    require_root!();
    let mut it = Secured::started();
    let front = |it: &Secured, name: &str, names: &str, valid| {
        Front::tls(&it.authority.issue(name, names, valid), Some(&it.authority))
    };
    let expired = front(&it, "expired", ADDRESS, Valid::Before);
    it.withstands_server(
        &["has expired at 2021-01-01T00:00:00Z", "this machine's clock says 20", "renew it on the server"],
        expired,
    );
    let early = front(&it, "early", ADDRESS, Valid::Later);
    it.withstands_server(
        &["is valid from 2099-01-01T00:00:00Z on", "this machine's clock says 20", "set the clock"],
        early,
    );
    let other = front(&it, "other", "DNS:kubernetes.example,IP:192.0.2.77", Valid::Now);
    let key = format!("tls-server-name at clusters[c].cluster in {}", text(&it.folder.join("kubeconfig")));
    it.withstands_server(
        &["is for kubernetes.example, 192.0.2.77, not for 127.0.0.1", "give one of its names as", &key],
        other,
    );
    let stranger = Authority::new(&it.folder, "stranger");
    let strange = Front::tls(&stranger.issue("server", ADDRESS, Valid::Now), Some(&it.authority));
    let key = format!("clusters[c].cluster.certificate-authority: {}", text(&it.folder.join("ca.crt")));
    let reported = ["is not signed by the authority of", &key, "give that cluster's CA"];
    it.withstands_server(&reported, strange.clone());

    // The cluster has another CA from now on: the file is replaced without a restart.
    it.withstands(&reported, |it| it.server.be(strange), |it| it.trust(&stranger));
}

#[test]
fn a_client_whose_certificate_is_wrong() {
    require_root!();
    let mut it = Secured::started();
    let good = it.authority.issue("renewed", "DNS:client", Valid::Now);
    let expired = it.authority.issue("outdated", "DNS:client", Valid::Before);
    let stranger = Authority::new(&it.folder, "stranger").issue("client", "DNS:client", Valid::Now);
    let renewed = Front::tls(&it.good, Some(&it.authority));
    let key = format!("users[u].user.client-certificate: {}", text(&it.folder.join("agent.crt")));
    // Open connections would stay valid: cut them.
    let shown = |it: &Secured, identity: &Identity, front: &Front| {
        let read = it.cluster.node.log().len();
        it.show(identity);
        let reconnected = || {
            let log = it.cluster.node.log()[read..].to_owned();
            if log.contains("are read again") { Ok(()) } else { Err(log) }
        };
        try_wait_until(LIMIT, reconnected).unwrap();
        it.server.be(front.clone());
    };
    it.withstands(
        &["refuses the client's certificate", &key, "has expired at 2021-01-01T00:00:00Z", "renew it"],
        |it| shown(it, &expired, &renewed),
        |it| it.show(&good),
    );
    it.withstands(
        &["refuses the client's certificate", &key, "signed by the CA which the server knows its clients by"],
        |it| shown(it, &stranger, &renewed),
        |it| it.show(&good),
    );
    let at = format!(
        "give client-certificate and client-key at users[u].user in {}",
        text(&it.folder.join("kubeconfig"))
    );
    it.withstands(
        &["if it wants a client's certificate", &at],
        |it| {
            it.kubeconfig(&it.server.url(), false);
            thread::sleep(Duration::from_secs(2));
            it.server.be(renewed.clone());
        },
        |it| it.kubeconfig(&it.server.url(), true),
    );
}

#[test]
fn a_server_that_does_not_speak_tls_or_is_cut_off() {
    require_root!();
    let mut it = Secured::started();
    it.withstands_server(&["does not speak TLS: should it be http://"], Front::Plain);
    it.withstands_server(&["ends connections before they are secure"], Front::Cut);
    // The other way round: asked without TLS, a real server says so.
    let (url, plain) = (it.server.url(), it.cluster.gate.url().replace("https://", "http://"));
    it.withstands(
        &["speaks TLS, and is asked without: make it https://"],
        |it| it.kubeconfig(&plain, true),
        |it| it.kubeconfig(&url, true),
    );
}
