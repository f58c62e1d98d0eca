//! The DNS cache without a DNS proxy: empty, but invalid filters are refused as with the proxy.

use std::net::IpAddr;

use crate::request::Request;
use crate::response::Response;

/// Maximum length of a pattern in bytes.
const LONGEST: usize = 255;

/// Answers with the status if the filters are valid, else with 400.
pub(super) fn checked(request: &Request, status: u16) -> Response {
    refused_name_filters(request).unwrap_or_else(|| Response::empty(status))
}

/// Returns the answer 400 to a request under `/fqdn` with an invalid filter `cidr` or `matchpattern`.
pub fn refused_name_filters(request: &Request) -> Option<Response> {
    let cidr = request.query("cidr").and_then(wrong_prefix);
    let error = cidr.or_else(|| request.query("matchpattern").and_then(wrong_pattern));
    error.map(|error| Response::error(400, error))
}

/// Returns the error about an invalid prefix, with Go's text.
fn wrong_prefix(text: &str) -> Option<String> {
    let fault = match text.rsplit_once('/') {
        None => "no '/'".to_owned(),
        Some((address, bits)) => match (address.parse::<IpAddr>(), bits.parse::<u8>()) {
            (Err(_), _) => format!("ParseAddr({address:?}): unable to parse IP"),
            (_, Err(_)) => format!("bad bits after slash: {bits:?}"),
            (Ok(IpAddr::V4(_)), Ok(33..)) | (Ok(IpAddr::V6(_)), Ok(129..)) => {
                "prefix length out of range".to_owned()
            }
            _ => return None,
        },
    };
    Some(format!("netip.ParsePrefix({text:?}): {fault}"))
}

/// Returns the error about an invalid pattern of names.
fn wrong_pattern(text: &str) -> Option<String> {
    let dot = if text.is_empty() || text.ends_with(['.', '*']) { "" } else { "." };
    let pattern = format!("{text}{dot}");
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.*".contains(c);
    if pattern.trim().len() > LONGEST {
        Some(format!("Invalid MatchPattern: {pattern:?}. Must be <= {LONGEST} characters long."))
    } else if pattern.chars().all(allowed) {
        None
    } else {
        Some(format!(
            "Invalid characters in MatchPattern: \"{pattern}\". \
             Only 0-9, a-z, A-Z and ., -, _ and * characters are allowed"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::Operation;

    #[tokio::test]
    async fn wrong_filters_are_refused() {
        for (name, value, error) in [
            ("cidr", "10.0.0.0/8", None),
            ("cidr", "fd00::/64", None),
            ("cidr", "10.0.0.0", Some("netip.ParsePrefix(\"10.0.0.0\"): no '/'")),
            ("cidr", "ten/8", Some("netip.ParsePrefix(\"ten/8\"): ParseAddr(\"ten\"): unable to parse IP")),
            ("cidr", "10.0.0.0/x", Some("netip.ParsePrefix(\"10.0.0.0/x\"): bad bits after slash: \"x\"")),
            ("cidr", "10.0.0.0/33", Some("netip.ParsePrefix(\"10.0.0.0/33\"): prefix length out of range")),
            ("matchpattern", "*.example.com", None),
            ("matchpattern", "*", None),
            (
                "matchpattern",
                "a b",
                Some(
                    "Invalid characters in MatchPattern: \"a b.\". \
                     Only 0-9, a-z, A-Z and ., -, _ and * characters are allowed",
                ),
            ),
        ] {
            let mut request = Request::new(Operation::GetFqdnCache, &[]);
            request.query.push((name.to_owned(), value.to_owned()));
            let answer = checked(&request, 404);
            let status = answer.status().as_u16();
            let expected = match error {
                None => (404, String::new()),
                Some(error) => (400, serde_json::to_string(error).unwrap() + "\n"),
            };
            assert_eq!(
                (status, String::from_utf8(answer.body().await.to_vec()).unwrap()),
                expected,
                "{value}"
            );
        }
    }
}
