//! Metrics of the operator by TLS, scraped by openssl.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use hive::TestHive;
use test_kit::{Authority, Identity, Valid};

/// Returns a free address: that of a listener that is closed again.
fn free() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn hive(address: &str) -> TestHive {
    TestHive::new([metrics::cell(), operator_api::cell()])
        .set("operator-api-serve-addr", "127.0.0.1:0")
        .set("enable-metrics", true)
        .set("operator-prometheus-serve-addr", address)
        .set("operator-prometheus-enable-tls", true)
}

/// Puts the files into a folder as a kubelet does: behind a link that is exchanged.
fn mount(folder: &Path, version: &str, files: &[(&str, &Path)]) {
    let data = folder.join(version);
    fs::create_dir_all(&data).unwrap();
    for (name, file) in files {
        fs::copy(file, data.join(name)).unwrap();
        drop(symlink(Path::new("..data").join(name), folder.join(name)));
    }
    symlink(version, folder.join("..new")).unwrap();
    fs::rename(folder.join("..new"), folder.join("..data")).unwrap();
}

async fn openssl(arguments: Vec<&OsStr>) -> String {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-verify_return_error"]).args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let output = hive::blocking(move || {
        let mut client = command.spawn()?;
        // A refused client may have ended before it reads this.
        let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        drop(client.stdin.take().map(|mut stdin| stdin.write_all(request)));
        client.wait_with_output()
    });
    String::from_utf8(output.await.unwrap().stdout).unwrap()
}

/// Returns the answer to a scrape; empty if the client is refused.
async fn scrape(address: &str, authority: &Authority, client: Option<&Identity>, version: &str) -> String {
    let trusted = authority.certificate();
    let mut arguments: Vec<&OsStr> =
        ["-quiet", version, "-connect", address, "-CAfile"].map(OsStr::new).into();
    arguments.push(trusted.as_os_str());
    if let Some(client) = client {
        arguments.extend([OsStr::new("-cert"), client.certificate.as_os_str()]);
        arguments.extend([OsStr::new("-key"), client.key.as_os_str()]);
    }
    openssl(arguments).await
}

/// Returns what openssl prints of the certificate of the server.
async fn served(address: &str, authority: &Authority, client: &Identity) -> String {
    let trusted = authority.certificate();
    let (certificate, key) = (client.certificate.as_os_str(), client.key.as_os_str());
    let text = openssl(vec![
        OsStr::new("-connect"),
        OsStr::new(address),
        OsStr::new("-CAfile"),
        trusted.as_os_str(),
        OsStr::new("-cert"),
        certificate,
        OsStr::new("-key"),
        key,
    ]);
    let text = text.await;
    let begin = text.find("-----BEGIN CERTIFICATE-----").unwrap_or(text.len());
    let end = text.find("-----END CERTIFICATE-----").unwrap_or(text.len());
    text[begin..end].to_owned()
}

fn plain(address: &str) -> String {
    let mut text = String::new();
    let mut stream = TcpStream::connect(address).unwrap();
    drop(stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
    drop(stream.read_to_string(&mut text));
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn only_clients_of_the_authority_scrape_and_changed_certificates_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let mounted = folder.path().join("mounted");
    fs::create_dir(&mounted).unwrap();
    let (good, other) = (Authority::new(folder.path(), "good"), Authority::new(folder.path(), "other"));
    let address = free();
    let mut hive = hive(&address)
        .set("operator-prometheus-tls-cert-file", mounted.join("server.crt").display())
        .set("operator-prometheus-tls-key-file", mounted.join("server.key").display())
        .set("operator-prometheus-tls-client-ca-files", mounted.join("client-ca.crt").display());
    hive.start().await;
    let error = || hive.hive().health().at("metrics.job-certificates").map(|it| it.error).unwrap_or_default();
    // The secret may come later.
    hive.until("the job names a file", || error().contains("is no certificate in PEM")).await;
    let client = good.issue("client", "DNS:client", Valid::Now);
    assert_eq!(scrape(&address, &good, Some(&client), "-tls1_3").await, "");
    assert_eq!(plain(&address), "");

    let (first, authority) = (good.issue("first", "DNS:operator", Valid::Now), good.certificate());
    let files =
        |server: &Identity| [("server.crt", server.certificate.clone()), ("server.key", server.key.clone())];
    let put = |version: &str, server: &Identity| {
        let files = files(server);
        let mut all: Vec<(&str, &Path)> = files.iter().map(|(name, path)| (*name, path.as_path())).collect();
        all.push(("client-ca.crt", &authority));
        mount(&mounted, version, &all);
    };
    put("..1", &first);
    let message = || hive.hive().health().at("metrics.job-certificates").map(|it| it.message);
    hive.until("the files are read", || message().as_deref() == Some("Certificates are read")).await;
    let answer = scrape(&address, &good, Some(&client), "-tls1_3").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("\ncilium_operator_process_start_time_seconds "), "{answer}");

    let foreign = other.issue("foreign", "DNS:client", Valid::Now);
    let expired = good.issue("expired", "DNS:client", Valid::Before);
    assert_eq!(scrape(&address, &good, Some(&foreign), "-tls1_3").await, "", "another authority");
    assert_eq!(scrape(&address, &good, Some(&expired), "-tls1_3").await, "", "an expired certificate");
    assert_eq!(scrape(&address, &good, None, "-tls1_3").await, "", "no certificate");
    assert_eq!(scrape(&address, &good, Some(&client), "-tls1_2").await, "", "an old version");
    assert_eq!(scrape(&address, &other, Some(&client), "-tls1_3").await, "", "the client checks the server");
    assert!(!plain(&address).contains("HTTP"));

    let before = served(&address, &good, &client).await;
    assert!(!before.is_empty());
    // Certificate and key of different pairs: the previous ones stay.
    let second = good.issue("second", "DNS:operator", Valid::Now);
    put("..2", &Identity { key: first.key.clone(), ..second.clone() });
    hive.until("the fault is named", || error().contains("cannot be used with its key")).await;
    assert_eq!(served(&address, &good, &client).await, before);
    put("..3", &second);
    hive.until("the new files are read", || message().as_deref() == Some("Certificates are read")).await;
    let after = served(&address, &good, &client).await;
    assert!(!after.is_empty() && after != before);
    assert!(scrape(&address, &good, Some(&client), "-tls1_3").await.starts_with("HTTP/1.1 200"));
    hive.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_authorities_any_client_scrapes_by_tls() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(folder.path(), "good");
    let server = authority.issue("server", "DNS:operator", Valid::Now);
    let address = free();
    let mut hive = hive(&address)
        .set("operator-prometheus-tls-cert-file", server.certificate.display())
        .set("operator-prometheus-tls-key-file", server.key.display());
    hive.start().await;
    let message = || hive.hive().health().at("metrics.job-certificates").map(|it| it.message);
    hive.until("the files are read", || message().as_deref() == Some("Certificates are read")).await;
    let answer = scrape(&address, &authority, None, "-tls1_3").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(!plain(&address).contains("HTTP"));
    hive.stop().await;
}

#[tokio::test]
async fn tls_without_a_certificate_or_a_key_is_refused() {
    let mut bare = hive("127.0.0.1:0");
    let error = bare.try_start().await.unwrap_err().to_string();
    assert!(error.contains("operator-prometheus-tls-cert-file: is empty"), "{error}");
    let mut no_key = hive("127.0.0.1:0").set("operator-prometheus-tls-cert-file", "/server.crt");
    let error = no_key.try_start().await.unwrap_err().to_string();
    assert!(error.contains("operator-prometheus-tls-key-file: is empty"), "{error}");
}
