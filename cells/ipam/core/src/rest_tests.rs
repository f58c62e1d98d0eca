//! The REST API: bodies and error texts are Cilium's, and a refused request changes nothing.

use api::Operation;
use statedb::Db;

use super::*;
use crate::address::Address;
use crate::handle::Node;

struct Bench {
    ipam: Ipam,
    table: statedb::Table<Address>,
}

fn bench(v4: &str, v6: Option<&str>) -> Bench {
    let node = Node {
        router_ipv4: Some([10, 244, 71, 14].into()),
        router_ipv6: v6.map(|_| "fd00::1".parse().unwrap()),
        ..Node::with_ranges(Some(v4.parse().unwrap()), v6.map(|range| range.parse().unwrap()))
    };
    let table = Db::new().table::<Address>().unwrap();
    Bench { table: table.reader(), ipam: Ipam::new(table, move || node.clone()) }
}

fn request(operation: Operation, ip: &str, query: &[(&str, &str)]) -> Request {
    let mut request = Request::new(operation, &[("ip", ip)]);
    request.query = query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    request
}

async fn text(response: Response) -> (u16, String) {
    let status = response.status().as_u16();
    (status, String::from_utf8(response.body().await.to_vec()).unwrap())
}

fn state(bench: &Bench) -> Vec<Address> {
    let snapshot = bench.table.snapshot();
    bench.table.all(&snapshot).map(|row| (**row).clone()).collect()
}

#[tokio::test]
async fn post_ipam_answers_as_the_original() {
    let bench = bench("10.0.0.0/30", None);
    bench.ipam.allocate_ip([10, 0, 0, 1].into(), "router", "default").unwrap();
    let post = request(Operation::PostIpam, "", &[("owner", "default/p1"), ("pool", "whatever")]);
    let (status, body) = text(post_ipam(&bench.ipam, &post)).await;
    assert_eq!(status, 201);
    let expected = concat!(
        r#"{"address":{"ipv4":"10.0.0.2","ipv4-pool-name":"default"},"#,
        r#""host-addressing":{"ipv4":{"alloc-range":"10.0.0.0/30","enabled":true,"ip":"10.244.71.14"}},"#,
        r#""ipv4":{"cidrs":null,"ip":"10.0.0.2"}}"#,
        "\n"
    );
    assert_eq!(body, expected);
    let before = state(&bench);
    let full = "\"range is full: pool default has 2 IPv4 addresses on this node, router holds 1 of them\"\n";
    assert_eq!(text(post_ipam(&bench.ipam, &post)).await, (502, full.to_owned()));
    assert_eq!(state(&bench), before);
}

#[tokio::test]
async fn a_disabled_family_gives_an_empty_address() {
    let bench = bench("10.0.0.0/24", None);
    let post = request(Operation::PostIpam, "", &[("family", "ipv6")]);
    let (status, body) = text(post_ipam(&bench.ipam, &post)).await;
    assert_eq!(status, 201);
    assert!(body.starts_with(r#"{"address":{},"host-addressing""#), "{body}");
    assert!(state(&bench).is_empty());
}

#[tokio::test]
async fn expiring_addresses_carry_their_token() {
    let bench = bench("10.0.0.0/24", Some("fd00::/96"));
    let mut post = request(Operation::PostIpam, "", &[("owner", "default/p1")]);
    post.headers.insert("expiration", "true".parse().unwrap());
    let (_, body) = text(post_ipam(&bench.ipam, &post)).await;
    let answer: api_models::IpamResponse = serde_json::from_str(&body).unwrap();
    let (v4, v6) = (answer.ipv4.unwrap(), answer.ipv6.unwrap());
    assert_ne!(v4.expiration_uuid, v6.expiration_uuid);
    assert_eq!(v4.expiration_uuid.len(), 36);
    let address = v4.ip.parse().unwrap();
    assert!(bench.ipam.hand_over(address, Some(&v6.expiration_uuid), "p1", 1).is_err());
    bench.ipam.hand_over(address, Some(&v4.expiration_uuid), "p1", 1).unwrap();
}

#[tokio::test]
async fn refusals_say_what_the_original_says_and_change_nothing() {
    let bench = bench("10.0.0.0/24", None);
    bench.ipam.allocate_ip([10, 0, 0, 9].into(), "router", "default").unwrap();
    bench.ipam.allocate_ip([10, 0, 0, 10].into(), "p1", "default").unwrap();
    bench.ipam.hand_over([10, 0, 0, 10].into(), None, "p1", 7).unwrap();
    let before = state(&bench);
    let (post, delete) = (Operation::PostIpamIP, Operation::DeleteIpamIP);
    let pool = ("pool", "default");
    for (operation, ip, query, expected) in [
        (post, "not-an-ip", vec![pool], (500, "Invalid IP address: not-an-ip")),
        (
            post,
            "10.0.0.11",
            vec![("owner", "x")],
            (500, r#"unable to restore IP 10.0.0.11 for "x": pool name must be provided"#),
        ),
        (post, "10.0.0.9", vec![pool], (500, "provided IP is already allocated")),
        (
            post,
            "192.0.2.1",
            vec![pool],
            (500, "provided IP is not in the valid range. The range of valid IPs is 10.0.0.0/24"),
        ),
        (post, "fd00::1", vec![pool], (500, "IPv6 allocation disabled")),
        (delete, "not-an-ip", vec![pool], (400, "Invalid IP address: not-an-ip")),
        (delete, "1.2.3.4", vec![], (500, "no IPAM pool provided for IP release of 1.2.3.4")),
        (delete, "fd00::1", vec![pool], (500, "IPv6 allocation disabled")),
        (delete, "10.0.0.10", vec![pool], (500, "IP is in use by an endpoint")),
    ] {
        let request = request(operation, ip, &query);
        let answer = match operation {
            Operation::PostIpamIP => post_ipam_ip(&bench.ipam, &request),
            _ => delete_ipam_ip(&bench.ipam, &request),
        };
        let expected = (expected.0, serde_json::to_string(expected.1).unwrap() + "\n");
        assert_eq!(text(answer).await, expected, "{operation:?} {ip}");
        assert_eq!(state(&bench), before, "{operation:?} {ip}");
    }
}

#[tokio::test]
async fn an_address_given_and_taken_back() {
    let bench = bench("10.0.0.0/24", None);
    let pool = [("owner", "default/p1"), ("pool", "default")];
    let post = request(Operation::PostIpamIP, "10.0.0.7", &pool);
    assert_eq!(text(post_ipam_ip(&bench.ipam, &post)).await, (200, String::new()));
    let status = bench.ipam.status(true);
    assert_eq!(status.status, "IPv4: 1/254 allocated from 10.0.0.0/24, ");
    assert_eq!(status.allocations["10.0.0.7"], "default/p1");
    let delete = request(Operation::DeleteIpamIP, "10.0.0.7", &pool);
    for _ in 0..2 {
        assert_eq!(text(delete_ipam_ip(&bench.ipam, &delete)).await, (200, String::new()));
    }
    assert_eq!(bench.ipam.status(true).status, "IPv4: 0/254 allocated from 10.0.0.0/24, ");
    assert_eq!(text(post_ipam_ip(&bench.ipam, &post)).await.0, 200, "by number it need not rest");
}

#[test]
fn debug_information_names_owners_and_terms() {
    let bench = bench("10.0.0.0/29", None);
    bench.ipam.allocate_ip([10, 0, 0, 1].into(), "router", "default").unwrap();
    bench.ipam.allocate_ip([10, 0, 0, 2].into(), "default/p1", "default").unwrap();
    bench.ipam.hand_over([10, 0, 0, 2].into(), None, "default/p1", 7).unwrap();
    bench.ipam.allocate_ip([10, 0, 0, 3].into(), "default/p2", "default").unwrap();
    bench.ipam.release([10, 0, 0, 3].into(), "default").unwrap();
    let text = bench.ipam.describe(std::time::Instant::now());
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[..2], ["10.0.0.1: router", "10.0.0.2: default/p1, endpoint 7"]);
    assert!(lines[2].starts_with("10.0.0.3: given back by default/p2"), "{text}");
    bench.ipam.allocate("default/p4", Some(Family::V4), true).unwrap();
    let text = bench.ipam.describe(std::time::Instant::now());
    assert!(text.contains(": default/p4, expires in "), "{text}");
}

#[tokio::test]
async fn the_routers_address_is_not_given_back() {
    let bench = bench("10.244.0.0/16", None);
    bench.ipam.allocate_ip([10, 244, 71, 14].into(), "router", "default").unwrap();
    let before = state(&bench);
    let delete = request(Operation::DeleteIpamIP, "10.244.71.14", &[("pool", "default")]);
    let expected = (500, "\"IP 10.244.71.14 is the router's\"\n".to_owned());
    assert_eq!(text(delete_ipam_ip(&bench.ipam, &delete)).await, expected);
    assert_eq!(state(&bench), before);
}
