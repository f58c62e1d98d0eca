//! A request in the form in which its handler gets it: routed, validated, decoded.

use api_models::Validate;
use bytes::Bytes;
use http::HeaderMap;
use serde::de::DeserializeOwned;

use crate::error::BadRequest;
use crate::operation::Operation;
use crate::response::Response;
use crate::rules::parse_bool;

/// A request of an operation. Headers and query parameters are validated; a required body is not empty.
#[derive(Clone, Debug)]
pub struct Request {
    /// The requested operation.
    pub operation: Operation,
    /// The variable parts of the path, by name, percent-decoded.
    pub path_params: Vec<(&'static str, String)>,
    /// The query, percent-decoded, in its order.
    pub query: Vec<(String, String)>,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, empty if there is none.
    pub body: Bytes,
}

impl Request {
    /// Returns a request without query, headers and body, for tests of handlers.
    pub fn new(operation: Operation, path_params: &[(&'static str, &str)]) -> Self {
        Self {
            operation,
            path_params: path_params.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
            query: Vec::new(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
        }
    }

    /// Returns a variable part of the path, empty if the path has none of that name.
    pub fn param(&self, name: &str) -> &str {
        self.path_params
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value.as_str())
            .unwrap_or("")
    }

    /// Returns a query parameter.
    pub fn query(&self, name: &str) -> Option<&str> {
        find(&self.query, name)
    }

    /// Returns a header; `None` if it is missing or not visible ASCII.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Returns a header as a boolean.
    pub fn header_bool(&self, name: &str) -> Option<bool> {
        self.header(name).and_then(parse_bool)
    }

    /// Returns a query parameter as a boolean.
    pub fn query_bool(&self, name: &str) -> Option<bool> {
        self.query(name).and_then(parse_bool)
    }

    /// Parses and validates the body as a model. The error is the answer: 400 for an unreadable body, 422 for one that
    /// violates a rule.
    pub fn json<T: DeserializeOwned + Validate>(&self) -> Result<T, Response> {
        let name = self.operation.body().name();
        let model: T = serde_json::from_slice(&self.body).map_err(|error| {
            Response::bad_request(&BadRequest::Unreadable { name, reason: error.to_string() })
        })?;
        model.validate().map_err(|violation| Response::bad_request(&BadRequest::Violation(violation)))?;
        Ok(model)
    }
}

pub(crate) fn find<'a>(pairs: &'a [(String, String)], name: &str) -> Option<&'a str> {
    pairs.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

/// Parses the pairs of a query string, percent-decoded, `+` as a space.
pub(crate) fn parse_query(query: &str) -> Vec<(String, String)> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(&name.replace('+', " ")), decode(&value.replace('+', " ")))
        })
        .collect()
}

/// Decodes percent-encoding; a `%` without two hexadecimal digits after it is kept.
pub(crate) fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let hex = |at: usize| tail.get(at).and_then(|&digit| char::from(digit).to_digit(16));
        match (first, hex(0), hex(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_decoding_keeps_other_characters() {
        assert_eq!(decode("cni-attachment-id%3Aabc%3aeth0"), "cni-attachment-id:abc:eth0");
        assert_eq!(decode("100%"), "100%");
        assert_eq!(decode("%zz%4"), "%zz%4");
        assert_eq!(decode("%C3%A4"), "\u{e4}");
        assert_eq!(
            parse_query("owner=default%2Fp1&pool=a+b&flag&=x&"),
            [("owner", "default/p1"), ("pool", "a b"), ("flag", ""), ("", "x")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
    }

    #[test]
    fn a_body_is_read_and_checked() {
        let mut request = Request::new(Operation::PutEndpointID, &[("id", "7")]);
        request.body = Bytes::from_static(br#"{"state":"ready"}"#);
        let body: api_models::EndpointChangeRequest = request.json().unwrap();
        assert_eq!((request.param("id"), body.state.as_str()), ("7", "ready"));
        for (body, status) in [("{", 400), ("[]", 400), ("{}", 422), (r#"{"state":"x"}"#, 422)] {
            request.body = Bytes::from_static(body.as_bytes());
            let answer = request.json::<api_models::EndpointChangeRequest>().unwrap_err();
            assert_eq!(answer.status().as_u16(), status, "{body}");
        }
    }
}
