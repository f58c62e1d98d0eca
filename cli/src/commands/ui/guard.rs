//! Which requests are answered: other pages in the same browser, and names that an attacker resolves to this host, are
//! kept out.

use hyper::header::{HOST, ORIGIN};
use hyper::{HeaderMap, Method, StatusCode};
use rustix::rand::{GetRandomFlags, getrandom};

/// The length of the token in bytes.
const TOKEN_LENGTH: usize = 16;

/// The hosts by which a browser on this machine, or behind a forwarded port, knows the server.
const HOSTS: [&str; 3] = ["127.0.0.1", "localhost", "[::1]"];

/// The conditions for an answer.
#[derive(Debug)]
pub(super) struct Guard {
    token: String,
}

impl Guard {
    /// Returns a guard with a new random token.
    ///
    /// # Errors
    /// The kernel has no random numbers.
    pub(super) fn random() -> std::io::Result<Self> {
        let mut bytes = [0; TOKEN_LENGTH];
        // The kernel returns up to 256 bytes at once.
        getrandom(&mut bytes, GetRandomFlags::empty())?;
        Ok(Self { token: hex(&bytes) })
    }

    /// Returns the first segment of all paths.
    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// Returns the path below the token.
    ///
    /// # Errors
    /// The status of the refusal.
    pub(super) fn check<'a>(
        &self,
        method: &Method,
        headers: &HeaderMap,
        path: &'a str,
    ) -> Result<&'a str, StatusCode> {
        if method != Method::GET {
            return Err(StatusCode::METHOD_NOT_ALLOWED);
        }
        // By DNS rebinding a page of another site reaches the port, but with the name of its own site.
        let host = one(headers, HOST.as_str()).ok_or(StatusCode::FORBIDDEN)?;
        let name = host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(name, _)| name);
        if !HOSTS.iter().any(|known| name.eq_ignore_ascii_case(known)) {
            return Err(StatusCode::FORBIDDEN);
        }
        let is_same = |origin: &str| origin.strip_prefix("http://") == Some(host);
        if headers.contains_key(ORIGIN) && !one(headers, ORIGIN.as_str()).is_some_and(is_same) {
            return Err(StatusCode::FORBIDDEN);
        }
        let (token, path) = path.strip_prefix('/').and_then(|path| path.split_once('/')).unwrap_or_default();
        if is_equal(token, &self.token) { Ok(path) } else { Err(StatusCode::NOT_FOUND) }
    }
}

/// Returns the value of a header that occurs once.
fn one<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

fn is_port(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Compares in a time that does not depend on the place of the first difference.
fn is_equal(one: &str, other: &str) -> bool {
    let difference = one.bytes().zip(other.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
    one.len() == other.len() && difference == 0
}

/// Returns the bytes as hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn only_this_hosts_own_page_with_the_token_gets_answers() {
        let guard = Guard::random().unwrap();
        let other = Guard::random().unwrap();
        assert_ne!(guard.token, other.token);
        assert_eq!(guard.token.len(), 2 * TOKEN_LENGTH);
        let check = |method: Method, headers: &[(&'static str, &str)], path: &str| {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
            }
            guard.check(&method, &map, path).map(str::to_owned).map_err(|status| status.as_u16())
        };
        let path = format!("/{}/api/node", guard.token);
        for host in ["127.0.0.1:8080", "localhost:8080", "LOCALHOST", "[::1]:80", "[::1]"] {
            assert_eq!(check(Method::GET, &[("host", host)], &path), Ok("api/node".to_owned()), "{host}");
        }
        for host in [
            "",
            "evil.test",
            "127.0.0.1.evil.test:80",
            "localhost:80:80",
            "127.0.0.2:80",
            "[::1",
            "@localhost",
        ] {
            assert_eq!(check(Method::GET, &[("host", host)], &path), Err(403), "{host}");
        }
        let host = ("host", "localhost:80");
        assert_eq!(check(Method::GET, &[], &path), Err(403));
        assert_eq!(check(Method::GET, &[host, ("host", "evil.test")], &path), Err(403));
        assert_eq!(
            check(Method::GET, &[host, ("origin", "http://localhost:80")], &path),
            Ok("api/node".to_owned())
        );
        for origin in ["null", "http://localhost:81", "https://localhost:80", "http://evil.test"] {
            assert_eq!(check(Method::GET, &[host, ("origin", origin)], &path), Err(403), "{origin}");
        }
        for method in [Method::POST, Method::HEAD, Method::OPTIONS, Method::DELETE] {
            assert_eq!(check(method, &[host], &path), Err(405));
        }
        let shorter = &guard.token[1..];
        for path in [
            "/",
            "",
            "/api/node",
            &format!("/{shorter}/"),
            &format!("/{}/", other.token),
            &format!("/{}", guard.token),
        ] {
            assert_eq!(check(Method::GET, &[host], path), Err(404), "{path}");
        }
    }
}
