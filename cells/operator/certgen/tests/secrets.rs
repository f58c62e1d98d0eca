//! The cell against an API server that fails, races and has authorities of others.

use std::collections::{BTreeMap, VecDeque};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hive::{Hive, bundle, supply};
use k8s_types::Answer;
use k8s_types::{Api, ApiError, Key, Kind, Patch, Preconditions};
use serde_json::{Value, json};

const CONFIG: &str = "certs: [{name: server, namespace: kube-system, commonName: a.example.org, hosts: [a.example.org], \
                      usage: [signing, server auth], validity: 1000h}]";

/// A server of secrets: the errors are the answers to its next requests.
#[derive(Default)]
struct Server {
    secrets: Mutex<BTreeMap<String, Value>>,
    errors: Mutex<VecDeque<Option<ApiError>>>,
    requests: Mutex<Vec<String>>,
    /// An object that another process stores before the first creation.
    race: Mutex<Option<Value>>,
}

fn temporary() -> Option<ApiError> {
    Some(ApiError::Unavailable { message: "the server is starting".to_owned(), retry_after: None })
}

impl Server {
    fn begin(&self, verb: &str, name: &str) -> Result<(), ApiError> {
        self.requests.lock().unwrap().push(format!("{verb} {name}"));
        self.errors.lock().unwrap().pop_front().flatten().map_or(Ok(()), Err)
    }

    fn data(&self, secret: &str, key: &str) -> Option<Vec<u8>> {
        let secrets = self.secrets.lock().unwrap();
        Some(STANDARD.decode(secrets.get(secret)?["data"][key].as_str()?).unwrap())
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock().unwrap())
    }
}

fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap().to_owned()
}

fn answer<T: Send + 'static>(result: Result<T, ApiError>) -> Answer<T> {
    Box::pin(std::future::ready(result))
}

impl Api for Server {
    fn get(&self, _: Kind, key: &Key) -> Answer<Bytes> {
        let found = || match self.secrets.lock().unwrap().get(key.name.as_str()) {
            Some(secret) => Ok(secret.to_string().into()),
            None => Err(ApiError::NotFound("not found".to_owned())),
        };
        answer(self.begin("get", &key.name).and_then(|()| found()))
    }

    fn create(&self, _: Kind, object: Bytes) -> Answer<Bytes> {
        let value: Value = serde_json::from_slice(&object).unwrap();
        if let Some(others) = self.race.lock().unwrap().take() {
            self.secrets.lock().unwrap().insert(name(&others), others);
        }
        answer(self.begin("create", &name(&value)).and_then(|()| {
            let mut secrets = self.secrets.lock().unwrap();
            if secrets.contains_key(&name(&value)) {
                return Err(ApiError::AlreadyExists("already exists".to_owned()));
            }
            secrets.insert(name(&value), value);
            Ok(object)
        }))
    }

    fn update(&self, _: Kind, object: Bytes) -> Answer<Bytes> {
        let value: Value = serde_json::from_slice(&object).unwrap();
        answer(self.begin("update", &name(&value)).and_then(|()| {
            match self.secrets.lock().unwrap().get_mut(&name(&value)) {
                Some(secret) => *secret = value,
                None => return Err(ApiError::NotFound("not found".to_owned())),
            }
            Ok(object)
        }))
    }

    fn update_status(&self, _: Kind, _: Bytes) -> Answer<Bytes> {
        unreachable!("secrets have no status")
    }

    fn patch(&self, _: Kind, _: &Key, _: bool, _: Patch) -> Answer<Bytes> {
        unreachable!("its role does not allow it")
    }

    fn delete(&self, _: Kind, _: &Key, _: Preconditions) -> Answer<()> {
        unreachable!("its role does not allow it")
    }
}

/// Runs the cell until it stops its hive; returns the errors.
async fn run(server: &Arc<Server>, options: &[(&str, &str)]) -> Vec<String> {
    let api: Arc<dyn Api> = server.clone();
    let mut builder = Hive::builder(bundle([supply(api), operator_certgen::cell()]));
    for (option, value) in [("config", CONFIG), ("ca-reuse-secret", "true")].iter().chain(options) {
        builder = builder.set(*option, *value);
    }
    let outcome = builder.build().unwrap().run().await;
    outcome.errors.iter().map(ToString::to_string).collect()
}

const GENERATE: (&str, &str) = ("ca-generate", "true");

fn authority(arguments: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (key, certificate) = (path("key"), path("crt"));
    let openssl = |arguments: &[&str]| {
        let output = Command::new("openssl").args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    openssl(&[&arguments[..1], &["-out", &key], &arguments[1..]].concat());
    let subject = "/O=Example/CN=An authority";
    let usage = "keyUsage=critical,keyCertSign";
    let request =
        ["req", "-x509", "-new", "-key", &key, "-subj", subject, "-days", "30", "-addext", usage, "-out"];
    openssl(&[&request[..], &[&certificate]].concat());
    let read = |path: &str| STANDARD.encode(std::fs::read(path).unwrap());
    json!({"metadata": {"name": "cilium-ca"}, "data": {"ca.crt": read(&certificate), "ca.key": read(&key)}})
}

/// Has openssl check the certificate by its authority.
fn verify(server: &Server) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let file = |secret: &str, key: &str| {
        let path = folder.path().join(format!("{secret}-{key}"));
        std::fs::write(&path, server.data(secret, key).unwrap()).unwrap();
        path
    };
    let (authority, certificate) = (file("cilium-ca", "ca.crt"), file("server", "tls.crt"));
    let mut verify = Command::new("openssl");
    verify.args(["verify", "-x509_strict", "-CAfile"]).args([authority, certificate]);
    let output = verify.output().unwrap();
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

#[tokio::test]
async fn an_authority_is_stored_before_it_signs_and_is_used_again() {
    let server = Arc::<Server>::default();
    assert_eq!(run(&server, &[GENERATE]).await, [""; 0]);
    let first = ["get cilium-ca", "create cilium-ca", "update server", "create server"];
    assert_eq!(server.requests(), first);
    assert_eq!(verify(&server), Ok(()));
    let before = [server.data("cilium-ca", "ca.crt"), server.data("server", "tls.crt")];
    assert_eq!(run(&server, &[GENERATE]).await, [""; 0]);
    assert_eq!(server.requests(), ["get cilium-ca", "update server"]);
    assert_eq!(server.data("cilium-ca", "ca.crt"), before[0]);
    assert_ne!(server.data("server", "tls.crt"), before[1]);
    assert_eq!(verify(&server), Ok(()));
    // It is valid no longer than its authority, though it may be for 1000 h.
    assert_eq!(server.data("server", "ca.crt"), before[0]);
}

#[tokio::test]
async fn of_two_jobs_at_once_the_second_uses_the_authority_of_the_first() {
    let server = Arc::<Server>::default();
    *server.race.lock().unwrap() = Some(authority(&["ecparam", "-name", "prime256v1", "-genkey", "-noout"]));
    let others = server.race.lock().unwrap().clone().unwrap();
    assert_eq!(run(&server, &[GENERATE]).await, [""; 0]);
    assert_eq!(server.secrets.lock().unwrap()["cilium-ca"], others);
    assert_eq!(verify(&server), Ok(()));
}

#[tokio::test]
async fn authorities_with_keys_of_all_forms_sign() {
    for arguments in [
        &["genrsa", "-traditional", "2048"][..],
        &["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:3072"],
        &["ecparam", "-name", "prime256v1", "-genkey", "-noout"],
        &["ecparam", "-name", "secp384r1", "-genkey", "-noout"],
        &["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"],
        &["genpkey", "-algorithm", "ED25519"],
    ] {
        let server = Arc::<Server>::default();
        server.secrets.lock().unwrap().insert("cilium-ca".to_owned(), authority(arguments));
        assert_eq!(run(&server, &[]).await, [""; 0], "{arguments:?}");
        assert_eq!(verify(&server), Ok(()), "{arguments:?}");
    }
}

#[tokio::test]
async fn what_cannot_sign_is_named_and_nothing_is_written() {
    let good = authority(&["ecparam", "-name", "prime256v1", "-genkey", "-noout"]);
    let with = |key: &str, value: Value| {
        let mut changed = good.clone();
        changed["data"][key] = value;
        changed
    };
    let other = authority(&["ecparam", "-name", "prime256v1", "-genkey", "-noout"]);
    let small = authority(&["genrsa", "1024"]);
    for (secret, fault) in [
        (with("ca.key", other["data"]["ca.key"].clone()), "ca.key: is not the key of ca.crt"),
        (with("ca.key", Value::Null), "kube-system/cilium-ca: "),
        (with("ca.crt", json!("!")), "ca.crt: "),
        (with("ca.crt", json!(STANDARD.encode("text"))), "ca.crt: "),
        (small, "ca.key: neither RSA of 2048 bits or more"),
    ] {
        let server = Arc::<Server>::default();
        server.secrets.lock().unwrap().insert("cilium-ca".to_owned(), secret);
        let errors = run(&server, &[GENERATE]).await;
        assert!(errors.len() == 1 && errors[0].contains(fault), "{fault}: {errors:?}");
        assert!(server.requests().iter().all(|request| request == "get cilium-ca"));
    }
    let server = Arc::<Server>::default();
    let errors = run(&server, &[]).await;
    assert!(errors[0].contains("kube-system/cilium-ca: does not exist"), "{errors:?}");
    // The type of a secret cannot change: the server names it.
    server.secrets.lock().unwrap().insert("cilium-ca".to_owned(), good);
    *server.errors.lock().unwrap() = [None, Some(ApiError::Invalid("type: is immutable".to_owned()))].into();
    let errors = run(&server, &[]).await;
    assert!(errors[0].contains("secret kube-system/server: type: is immutable"), "{errors:?}");
}

#[tokio::test(start_paused = true)]
async fn temporary_errors_are_retried_until_the_timeout() {
    let server = Arc::<Server>::default();
    *server.errors.lock().unwrap() = [temporary(), temporary(), None, temporary()].into();
    assert_eq!(run(&server, &[GENERATE, ("timeout", "10s")]).await, [""; 0]);
    assert_eq!(verify(&server), Ok(()));
    let server = Arc::<Server>::default();
    *server.errors.lock().unwrap() = std::iter::repeat_n(temporary(), 1000).collect();
    let begin = tokio::time::Instant::now();
    let errors = run(&server, &[GENERATE, ("timeout", "10s")]).await;
    assert!(errors[0].contains("within 10 s") && errors[0].contains("the server is starting"), "{errors:?}");
    assert!(begin.elapsed() <= Duration::from_secs(11));
    assert!(server.secrets.lock().unwrap().is_empty());
}
