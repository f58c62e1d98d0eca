//! The Job that makes certificates (`hubble.tls.auto.method` `cronJob`): its container runs from the image, with the account of
//! the chart's roles, against a real API server.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cluster_stage::{StageOptions, User};
use integration_tests::{Cluster, Machine, Node, Right, Workload, asked};
use serde_json::{Value, json};
use test_kit::require_root;

use super::images::build;
use super::{objects, render, require_helm};

/// The secrets and the domain that each certificate is for.
const CERTIFICATES: [(&str, &str); 4] = [
    ("hubble-metrics-server-certs", "default.hubble-metrics"),
    ("hubble-relay-client-certs", "hubble-relay"),
    ("hubble-relay-server-certs", "hubble-relay"),
    ("hubble-server-certs", "default.hubble-grpc"),
];

/// The account of the Job is that of the operator, so that the stage records its requests; the operator's roles are not applied.
fn values(method: &str) -> Value {
    json!({
        "hubble": {"enabled": true, "tls": {"auto": {"method": method},
                "server": {"extraDnsNames": ["flows.example.org"], "extraIpAddresses": ["192.0.2.7"]}},
            "metrics": {"enabled": ["drop"], "tls": {"enabled": true}},
            "relay": {"enabled": true, "tls": {"server": {"enabled": true}}}},
        "serviceAccounts": {"hubblecertgen": {"name": "cilium-operator"}},
    })
}

/// The objects of the chart that are of the Job.
fn of_job(values: &Value) -> BTreeMap<String, Value> {
    let rendered = objects(&render(values).unwrap());
    let is_of_job = |name: &str| {
        ["/hubble-generate-certs", "ServiceAccount/cilium-operator"].iter().any(|part| name.contains(part))
    };
    rendered.into_iter().filter(|(name, _)| is_of_job(name)).collect()
}

fn openssl(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("openssl").args(arguments).output().unwrap();
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

struct Certificates<'a> {
    cluster: &'a Cluster,
    folder: &'a Path,
}

impl Certificates<'_> {
    fn secret(&self, name: &str) -> Value {
        self.cluster.stage.get(&["-n=kube-system", "secret", name]).unwrap()
    }

    /// Writes an entry of a secret into a file.
    fn file(&self, secret: &str, key: &str) -> PathBuf {
        let data = self.secret(secret)["data"][key].as_str().unwrap_or_default().to_owned();
        let path = self.folder.join(format!("{secret}-{key}"));
        fs::write(&path, STANDARD.decode(data).unwrap()).unwrap();
        path
    }

    fn put(&self, name: &str, kind: &str, files: &[(&str, &Path)]) {
        let data: BTreeMap<&str, String> =
            files.iter().map(|(key, path)| (*key, STANDARD.encode(fs::read(path).unwrap()))).collect();
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": kind, "data": data,
            "metadata": {"name": name, "namespace": "kube-system"}});
        self.cluster.stage.apply(&secret.to_string()).unwrap();
    }

    fn delete(&self, names: &[&str]) {
        let arguments = [&["-n=kube-system", "delete", "secret"][..], names].concat();
        self.cluster.stage.kubectl(&arguments).unwrap();
    }

    /// Checks each certificate as its clients and servers do; returns them.
    fn check(&self) -> BTreeSet<String> {
        let authority = self.file("cilium-ca", "ca.crt");
        let checked = CERTIFICATES.map(|(secret, domain)| {
            assert_eq!(self.secret(secret)["type"], "kubernetes.io/tls");
            let [certificate, key, of_secret] =
                ["tls.crt", "tls.key", "ca.crt"].map(|entry| self.file(secret, entry));
            let [certificate, key] = [&certificate, &key].map(|path| path.to_str().unwrap());
            assert_eq!(fs::read(&of_secret).unwrap(), fs::read(&authority).unwrap(), "{secret}");
            let host = format!("a.{domain}.cilium.io");
            let verify = |purpose: &str, host: &str| {
                let options = ["verify", "-x509_strict", "-purpose", purpose, "-verify_hostname", host];
                openssl(&[&options[..], &["-CAfile", authority.to_str().unwrap(), certificate]].concat())
            };
            for purpose in ["sslserver", "sslclient"] {
                verify(purpose, &host).unwrap_or_else(|error| panic!("{secret}: {purpose}: {error}"));
            }
            assert!(verify("sslserver", "a.example.com").is_err(), "{secret}: another host");
            let of = |arguments: &[&str]| openssl(arguments).unwrap();
            let public = of(&["x509", "-in", certificate, "-noout", "-pubkey"]);
            assert_eq!(of(&["pkey", "-in", key, "-pubout"]), public, "{secret}: the key of another one");
            let dates = of(&["x509", "-in", certificate, "-noout", "-checkend", &(364 * 86_400).to_string()]);
            assert!(dates.contains("will not expire"), "{secret}: {dates}");
            public
        });
        let server = self.file("hubble-server-certs", "tls.crt");
        let names = ["x509", "-noout", "-ext", "subjectAltName", "-in", server.to_str().unwrap()];
        let names = openssl(&names).unwrap();
        assert!(names.contains("DNS:flows.example.org") && names.contains("192.0.2.7"), "{names}");
        checked.into()
    }
}

#[test]
fn the_job_makes_certificates_by_its_roles_alone() {
    require_root!();
    require_helm!();
    let images_folder = tempfile::tempdir().unwrap();
    let images = build(&["--bare"], images_folder.path(), &["apiary-operator"]);
    let stage = StageOptions { rbac: true, audit: true, ..StageOptions::default() };
    let cluster = Cluster::of(Node::new(), &stage, &[]);
    let machine = Machine::start(&cluster.node, images_folder.path());
    let rendered = of_job(&values("cronJob"));
    let names: Vec<&str> = rendered.keys().map(String::as_str).collect();
    let of_chart =
        ["CronJob", "Job", "Role", "RoleBinding"].map(|kind| format!("{kind}/hubble-generate-certs"));
    assert_eq!(
        names,
        [&of_chart.each_ref().map(String::as_str)[..], &["ServiceAccount/cilium-operator"]].concat()
    );
    for object in rendered.values() {
        cluster.stage.apply(&object.to_string()).unwrap();
    }
    let mut job = rendered["Job/hubble-generate-certs"].clone();
    assert_eq!(
        job["spec"]["template"]["spec"],
        rendered["CronJob/hubble-generate-certs"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    );
    // The stage has no network for pods.
    job["spec"]["template"]["spec"]["hostNetwork"] = json!(true);
    let account = cluster.stage.account(User::Operator);
    let workload = Workload::new(&machine, &images, &job, &cluster, &account);
    let spec = workload.spec["containers"][0].clone();
    let folder = tempfile::tempdir().unwrap();
    let certificates = Certificates { cluster: &cluster, folder: folder.path() };

    let log = workload.run(&spec);
    assert!(log.contains("A new authority is created"), "{log}");
    let (first, authority) = (certificates.check(), certificates.secret("cilium-ca")["data"].clone());
    assert_eq!(first.len(), CERTIFICATES.len(), "each has a key of its own");
    let log = workload.run(&spec);
    assert!(!log.contains("A new authority is created"), "{log}");
    assert_eq!(certificates.secret("cilium-ca")["data"], authority, "clients go on trusting it");
    assert!(certificates.check().is_disjoint(&first), "a run makes new keys");

    // Authorities of others: Helm's, with a key of RSA, and one as CFSSL writes it.
    let by_helm = objects(&render(&values("helm")).unwrap())["Secret/cilium-ca"].clone();
    certificates.delete(&["cilium-ca"]);
    cluster.stage.apply(&by_helm.to_string()).unwrap();
    let _ = workload.run(&spec);
    certificates.check();
    let (key, own) = (folder.path().join("own.key"), folder.path().join("own.crt"));
    let [key_name, own_name] = [&key, &own].map(|path| path.to_str().unwrap());
    let curve = ["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key_name];
    openssl(&curve).unwrap();
    let sign = |subject: &str, days: &str| {
        let request = [
            "req",
            "-x509",
            "-new",
            "-key",
            key_name,
            "-subj",
            subject,
            "-out",
            own_name,
            "-addext",
            "keyUsage=critical,keyCertSign",
        ];
        openssl(&[&request[..], &["-days", days]].concat()).unwrap();
    };
    sign("/C=DE/O=Example/CN=An authority", "730");
    certificates.put("cilium-ca", "Opaque", &[("ca.crt", &own), ("ca.key", &key)]);
    let _ = workload.run(&spec);
    let before = certificates.check();

    // A file that cannot sign is named, and nothing is written.
    let other = certificates.file("hubble-server-certs", "tls.key");
    for (files, fault) in [
        ([("ca.crt", own.as_path()), ("ca.key", other.as_path())], "ca.key: is not the key of ca.crt"),
        ([("ca.crt", own.as_path()), ("ca.kei", key.as_path())], "ca.key: is missing"),
    ] {
        certificates.delete(&["cilium-ca"]);
        certificates.put("cilium-ca", "Opaque", &files);
        let error = workload.try_run(&spec).expect_err(fault);
        assert!(error.contains(&format!("secret kube-system/cilium-ca: {fault}")), "{error}");
    }
    certificates.put("cilium-ca", "Opaque", &[("ca.crt", &own), ("ca.key", &key)]);
    assert_eq!(certificates.check(), before);

    let right =
        |verb: &str| Right { verb: verb.to_owned(), resource: "secrets".to_owned(), group: String::new() };
    let (requests, refused) = asked(&cluster.stage, User::Operator);
    assert_eq!(refused, BTreeSet::new());
    assert_eq!(
        requests,
        ["create", "get", "update"].map(right).into(),
        "no more and no less than the role allows"
    );
    let can = |words: &[&str]| {
        let user = format!("--as={}", User::Operator.name());
        let mut command =
            cluster.stage.kubectl_command(&[&["auth", "can-i", "-n=kube-system", &user], words].concat());
        command.output().unwrap().status.success()
    };
    assert!(can(&["get", "secrets/cilium-ca"]) && can(&["update", "secrets/hubble-server-certs"]));
    for forbidden in [
        ["update", "secrets/cilium-ca"],
        ["get", "secrets/hubble-server-certs"],
        ["list", "secrets"],
        ["update", "secrets/another"],
    ] {
        assert!(!can(&forbidden), "{forbidden:?}");
    }
}

/// An authority of the chart's values is stored; without a schedule there is no CronJob, and secrets of others are not made.
#[test]
fn the_job_is_rendered_for_what_is_asked_for() {
    require_helm!();
    let set = |path: &str, value: Value| {
        let mut all = values("cronJob");
        *all.pointer_mut("/hubble/tls/auto").unwrap() = json!({"method": "cronJob", "schedule": ""});
        let folder = path.rsplit_once('/').unwrap();
        all.pointer_mut(folder.0).unwrap()[folder.1] = value;
        objects(&render(&all).unwrap())
    };
    let made = |objects: &BTreeMap<String, Value>| -> Vec<String> {
        let role = &objects["Role/hubble-generate-certs"]["rules"][1]["resourceNames"];
        let role: Vec<String> = serde_json::from_value(role.clone()).unwrap();
        let spec = &objects["Job/hubble-generate-certs"]["spec"]["template"]["spec"]["containers"][0];
        let list = yaml_values::value(spec["env"][0]["value"].as_str().unwrap()).unwrap();
        let list: Vec<String> = list["certs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["name"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(role, list);
        list
    };
    let all = set("/hubble/enabled", json!(true));
    assert_eq!(made(&all), CERTIFICATES.map(|(name, _)| name));
    assert!(!all.contains_key("CronJob/hubble-generate-certs") && !all.contains_key("Secret/cilium-ca"));
    let given = set("/hubble/tls/server/existingSecret", json!("own"));
    assert_eq!(made(&given).len(), CERTIFICATES.len() - 1);
    let authority = set("/tls", json!({"ca": {"cert": "Y2VydA==", "key": "a2V5"}}));
    assert_eq!(authority["Secret/cilium-ca"]["data"], json!({"ca.crt": "Y2VydA==", "ca.key": "a2V5"}));
    let job = &authority["Job/hubble-generate-certs"];
    assert_eq!(job["metadata"]["annotations"]["helm.sh/hook"], "post-install,post-upgrade");
    let off = set("/hubble/tls/auto/enabled", json!(false));
    assert!(off.keys().all(|name| !name.ends_with("/hubble-generate-certs")), "{:?}", off.keys());
}
