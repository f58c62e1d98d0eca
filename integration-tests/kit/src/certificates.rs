//! Certificates of tests, made by openssl.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An authority that signs certificates.
#[derive(Debug)]
pub struct Authority {
    folder: PathBuf,
    name: String,
}

/// A certificate and its key, files in PEM.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// The time in which a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Valid {
    /// In the year 2020.
    Before,
    /// From 2020 to 2099.
    Now,
    /// In the year 2099.
    Later,
}

impl Authority {
    /// Returns a new authority, with its files in a folder.
    ///
    /// # Panics
    /// If openssl fails.
    #[must_use]
    pub fn new(folder: &Path, name: &str) -> Self {
        let this = Self { folder: folder.to_owned(), name: name.to_owned() };
        let (key, certificate) = (this.file("key"), this.certificate());
        let subject = format!("/CN={name}");
        let arguments = ["req", "-x509", "-days", "30000", "-subj", &subject, "-out", path(&certificate)];
        openssl(&[&arguments[..], &NEW_KEY, &["-keyout", path(&key)]].concat());
        fs::write(this.file("index"), "").expect("a writable folder");
        let config = format!(
            "[ca]\ndefault_ca=c\n[c]\ndatabase={}\nnew_certs_dir={}\nrand_serial=yes\ndefault_md=sha256\npolicy=p\n\
             unique_subject=no\ncopy_extensions=copy\n[p]\ncommonName=supplied\n",
            this.file("index").display(),
            this.folder.display()
        );
        fs::write(this.file("cnf"), config).expect("a writable folder");
        this
    }

    /// Returns the file of its own certificate.
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        self.file("crt")
    }

    /// Returns a certificate for these names, as openssl has them: `DNS:a,IP:127.0.0.1`. `file` is the name of its files.
    ///
    /// # Panics
    /// If openssl fails.
    #[must_use]
    pub fn issue(&self, file: &str, names: &str, valid: Valid) -> Identity {
        let of = |end: &str| self.folder.join(format!("{}-{file}.{end}", self.name));
        let identity = Identity { certificate: of("crt"), key: of("key") };
        let (asked, names) = (of("csr"), format!("subjectAltName={names}"));
        let subject = format!("/CN={file}");
        let arguments = ["req", "-new", "-subj", &subject, "-addext", &names, "-out", path(&asked)];
        openssl(&[&arguments[..], &NEW_KEY, &["-keyout", path(&identity.key)]].concat());
        let [from, to] = match valid {
            Valid::Before => ["20200101000000Z", "20210101000000Z"],
            Valid::Now => ["20200101000000Z", "20990101000000Z"],
            Valid::Later => ["20990101000000Z", "20991231000000Z"],
        };
        let (config, authority, key) = (self.file("cnf"), self.certificate(), self.file("key"));
        let by = ["-config", path(&config), "-cert", path(&authority), "-keyfile", path(&key)];
        let files = ["-in", path(&asked), "-out", path(&identity.certificate), "-notext"];
        openssl(&[&["ca", "-batch", "-startdate", from, "-enddate", to], &by[..], &files[..]].concat());
        identity
    }

    fn file(&self, end: &str) -> PathBuf {
        self.folder.join(format!("{}.{end}", self.name))
    }
}

const NEW_KEY: [&str; 5] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];

fn path(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

fn openssl(arguments: &[&str]) {
    let output = Command::new("openssl").args(arguments).output().expect("openssl: run tools/setup test");
    assert!(output.status.success(), "openssl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}
