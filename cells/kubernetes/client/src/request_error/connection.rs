//! Errors of connections, with their remedies.

use std::error::Error;
use std::io;

use jiff::Timestamp;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::{AlertDescription, CertificateError};

use super::{ErrorKind, RequestError};
use crate::access::{Certificate, Names};

/// Returns the error of a failed connection. `names`: the locations of the credentials.
pub(crate) fn of_connection(error: &kube::Error, server: &str, names: &Names) -> RequestError {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    let mut last = error.to_string();
    while let Some(error) = cause {
        if let Some(text) = of_cause(error, server, names) {
            return RequestError::new(ErrorKind::Unreachable, text);
        }
        last = error.to_string();
        if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled) {
            let text = format!(
                "the connection to {server} ended before anything was asked: {}",
                asked_for_certificate(names)
            );
            return RequestError::new(ErrorKind::Dropped, text);
        }
        cause = error.source();
    }
    let text = format!(
        "cannot use {server}: {last}; does an API server listen there, should it be https:// or another port?"
    );
    RequestError::new(ErrorKind::Unreachable, text)
}

fn of_cause(error: &(dyn Error + 'static), server: &str, names: &Names) -> Option<String> {
    if let Some(error) = error.downcast_ref::<rustls::Error>() {
        return Some(of_tls(error, server, names));
    }
    let mut io = error.downcast_ref::<io::Error>()?;
    // Wrapped I/O errors are not linked by `source`.
    while let Some(inner) = io.get_ref().and_then(|inner| inner.downcast_ref::<io::Error>()) {
        io = inner;
    }
    if let Some(tls) = io.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        return Some(of_tls(tls, server, names));
    }
    Some(match io.kind() {
        io::ErrorKind::ConnectionRefused => {
            format!("cannot reach {server}: connection refused; is the API server running there?")
        }
        io::ErrorKind::TimedOut => {
            format!("cannot reach {server}: no answer in time; is there a route, does a firewall drop it?")
        }
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            format!("cannot reach {server}: {io}; is there a route?")
        }
        _ if io.to_string().contains("lookup address") => {
            format!(
                "cannot resolve the name in {server}: {io}; check DNS (/etc/resolv.conf) or give an address"
            )
        }
        _ if io.to_string().contains("tls handshake eof") => format!(
            "{server} ends connections before they are secure: does a proxy or load balancer answer there whose API \
             server is away, or is it no TLS server?"
        ),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            format!("the connection to {server} failed: {io}; {}", asked_for_certificate(names))
        }
        _ if io.get_ref().is_some_and(|inner| inner.source().is_some() || inner.is::<io::Error>()) => {
            return None;
        }
        _ => format!("the connection to {server} failed: {io}"),
    })
}

/// Returns the hint for a closed connection: servers that refuse a client's certificate may close it before their alert
/// is read.
fn asked_for_certificate(names: &Names) -> String {
    let fault = |one: &Certificate| {
        one.fault(Timestamp::now()).map(|fault| format!("the client's certificate, {}: {fault}", one.name))
    };
    names
        .certificate
        .as_ref()
        .and_then(fault)
        .unwrap_or_else(|| "is the API server being restarted, or a proxy before it?".to_owned())
}

fn of_tls(error: &rustls::Error, server: &str, names: &Names) -> String {
    match error {
        rustls::Error::InvalidCertificate(wrong) => of_certificate(wrong, server, names),
        rustls::Error::InvalidMessage(_) => {
            format!("{server} does not speak TLS: should it be http://, or another port? ({error})")
        }
        rustls::Error::AlertReceived(alert) => of_alert(*alert, server, names),
        rustls::Error::PeerIncompatible(_) => {
            format!("no secure connection to {server}: {error}; it must offer TLS 1.2 or 1.3")
        }
        _ => format!("no secure connection to {server}: {error}"),
    }
}

fn of_certificate(wrong: &CertificateError, server: &str, names: &Names) -> String {
    let Names { authority, cluster, .. } = names;
    match wrong {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => format!(
            "the certificate of {server} is not signed by the authority of {authority}: give that cluster's CA, or the \
             address of that CA's server"
        ),
        CertificateError::NotValidYetContext { time: now, not_before } => format!(
            "the certificate of {server} is valid from {} on, and this machine's clock says {}: set the clock (or \
             renew the certificate, if the clock that it was made by was wrong)",
            time(*not_before),
            time(*now),
        ),
        CertificateError::NotValidYet => {
            format!("the certificate of {server} is not valid yet: set this machine's clock")
        }
        CertificateError::ExpiredContext { time: now, not_after } => format!(
            "the certificate of {server} has expired at {} (this machine's clock says {}): renew it on the server, or \
             set this machine's clock",
            time(*not_after),
            time(*now),
        ),
        CertificateError::Expired => {
            format!(
                "the certificate of {server} has expired: renew it on the server, or set this machine's clock"
            )
        }
        CertificateError::NotValidForNameContext { expected, presented } => {
            let instead = match cluster {
                Some(key) => {
                    format!(
                        "use an address that it names, or give one of its names as tls-server-name at {key}"
                    )
                }
                None => {
                    "use an address that it names, or have the server's certificate name this one".to_owned()
                }
            };
            format!(
                "the certificate of {server} is for {}, not for {}: {instead}",
                presented_names(presented),
                name_of(expected),
            )
        }
        CertificateError::NotValidForName => {
            format!("the certificate of {server} is for another name: use an address that it names")
        }
        other => format!(
            "the certificate of {server} is not accepted: {other}; it must be one of a server, in X.509 version 3, by the \
             authority of {authority}"
        ),
    }
}

/// Returns the message for a server's TLS alert.
fn of_alert(alert: AlertDescription, server: &str, names: &Names) -> String {
    let Names { credentials, user, certificate, .. } = names;
    match (alert, certificate) {
        (AlertDescription::HandshakeFailure | AlertDescription::ProtocolVersion, None) => format!(
            "{server} refuses the connection ({alert:?}): it must offer TLS 1.2 or 1.3 with a cipher that is not outdated"
        ),
        (AlertDescription::UnrecognisedName, _) => {
            format!("{server} knows no server of that name ({alert:?}): use the address that it is known by")
        }
        (_, Some(certificate)) => {
            let why = certificate.fault(Timestamp::now()).unwrap_or_else(|| {
                "give one that is signed by the CA which the server knows its clients by".to_owned()
            });
            format!("{server} refuses the client's certificate ({alert:?}), {}: {why}", certificate.name)
        }
        (_, None) => format!(
            "{server} refuses the connection ({alert:?}): if it wants a client's certificate, give client-certificate and \
             client-key at {user} in {credentials}"
        ),
    }
}

/// Formats a time in UTC, with seconds.
fn time(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).map_or_else(|_| format!("{seconds} s"), |time| time.to_string())
}

fn name_of(name: &ServerName<'_>) -> String {
    match name {
        ServerName::IpAddress(address) => std::net::IpAddr::from(*address).to_string(),
        other => other.to_str().into_owned(),
    }
}

/// Returns names as the library writes them, `DnsName("a")`, without the wrapping.
fn presented_names(presented: &[String]) -> String {
    let inner = |name: &String| {
        let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
        inner.unwrap_or(name).trim_matches('"').to_owned()
    };
    match presented {
        [] => "no name at all".to_owned(),
        some => some.iter().map(inner).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn text(error: io::Error) -> String {
        let names = Names {
            credentials: "/k".to_owned(),
            user: "users[u].user".to_owned(),
            cluster: Some("clusters[c].cluster in /k".to_owned()),
            authority: "/ca".to_owned(),
            certificate: None,
        };
        of_connection(&kube::Error::Service(Box::new(io::Error::other(error))), "https://s", &names).text
    }

    fn tls(error: rustls::Error) -> String {
        text(io::Error::new(io::ErrorKind::InvalidData, error))
    }

    #[test]
    fn errors_of_certificates_have_remedies() {
        let wrong = |wrong| tls(rustls::Error::InvalidCertificate(wrong));
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        assert!(wrong(CertificateError::UnknownIssuer).contains("not signed by the authority of /ca"));
        assert_eq!(
            wrong(CertificateError::NotValidYetContext { time: at(0), not_before: at(86_400) }),
            "the certificate of https://s is valid from 1970-01-02T00:00:00Z on, and this machine's clock says \
             1970-01-01T00:00:00Z: set the clock (or renew the certificate, if the clock that it was made by was wrong)"
        );
        assert!(
            wrong(CertificateError::ExpiredContext { time: at(86_400), not_after: at(0) })
                .contains("has expired at 1970-01-01T00:00:00Z")
        );
        let expected = ServerName::try_from("10.0.0.1").unwrap();
        let presented = vec!["DnsName(\"kubernetes\")".to_owned(), "IpAddress(10.0.0.2)".to_owned()];
        assert_eq!(
            wrong(CertificateError::NotValidForNameContext { expected, presented }),
            "the certificate of https://s is for kubernetes, 10.0.0.2, not for 10.0.0.1: use an address that it names, or \
             give one of its names as tls-server-name at clusters[c].cluster in /k"
        );
    }

    #[test]
    fn errors_of_connections_have_remedies() {
        assert!(text(io::ErrorKind::ConnectionRefused.into()).contains("is the API server running there?"));
        assert!(text(io::Error::other("failed to lookup address information: x")).contains("check DNS"));
        let cut = io::Error::new(io::ErrorKind::UnexpectedEof, "tls handshake eof");
        assert!(text(cut).contains("before they are secure"));
        let alert = tls(rustls::Error::AlertReceived(AlertDescription::CertificateRequired));
        assert!(alert.ends_with("give client-certificate and client-key at users[u].user in /k"), "{alert}");
    }
}
