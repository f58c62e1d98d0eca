//! Begin, selection and end of requests, and losses, on a ring in virtual time.

use hubble_api::flow::{AgentEvent, Flow, FlowFilter, Verdict};
use hubble_api::observer::GetFlowsResponse;
use hubble_api::observer::get_flows_response::ResponseTypes;
use prost_types::FieldMask;
use tokio::time::{advance, timeout};

use super::*;

const INTERVAL: Duration = Duration::from_secs(1);

/// A flow at a second; every third is a drop.
fn flow(seconds: i64) -> Event {
    let verdict = if seconds % 3 == 0 { Verdict::Dropped } else { Verdict::Forwarded };
    let time = Some(Timestamp { seconds, nanos: 0 });
    Event::Flow(Arc::new(Flow { time, verdict: verdict.into(), summary: "TCP".into(), ..Flow::default() }))
}

/// A ring of 15 with flows of the seconds 1 to `last`.
fn ring(last: i64) -> Arc<Ring> {
    let ring = Arc::new(Ring::new(15));
    ring.push((1..=last).map(flow).collect());
    ring
}

fn at(seconds: i64) -> Option<Timestamp> {
    Some(Timestamp { seconds, nanos: 0 })
}

fn drops() -> Vec<FlowFilter> {
    vec![FlowFilter { verdict: vec![Verdict::Dropped.into()], ..FlowFilter::default() }]
}

async fn flows(ring: &Arc<Ring>, request: &GetFlowsRequest) -> Events<Flows> {
    let answer = Flows::new(request).unwrap();
    Events::new(ring.clone(), answer, Range::from(request), INTERVAL, "node".into()).await.unwrap()
}

/// Returns the number of a response: the second of a flow, a loss as a negative number.
fn number(response: &GetFlowsResponse) -> i64 {
    assert_eq!(response.node_name, "node");
    match response.response_types.as_ref().unwrap() {
        ResponseTypes::Flow(_) => response.time.unwrap().seconds,
        ResponseTypes::LostEvents(lost) => -(lost.num_events_lost as i64),
        ResponseTypes::NodeStatus(_) => panic!("no node has a status"),
    }
}

/// Returns what a request gives before it ends or waits.
async fn all(flows: &mut Events<Flows>) -> Vec<i64> {
    let mut numbers = Vec::new();
    while let Ok(Some(response)) = timeout(Duration::ZERO, flows.next()).await {
        numbers.push(number(&response));
    }
    numbers
}

async fn get(request: GetFlowsRequest) -> Vec<i64> {
    all(&mut flows(&ring(10), &request).await).await
}

#[tokio::test(start_paused = true)]
async fn a_request_begins_by_first_last_or_time() {
    let last = |number| GetFlowsRequest { number, ..GetFlowsRequest::default() };
    assert_eq!(get(last(0)).await, (1..=10).collect::<Vec<_>>());
    assert_eq!(get(last(1)).await, [10], "the newest flow is readable");
    assert_eq!(get(last(3)).await, [8, 9, 10]);
    assert_eq!(get(last(99)).await.len(), 10);
    assert_eq!(
        get(GetFlowsRequest { whitelist: drops(), ..last(2) }).await,
        [6, 9],
        "flows that pass are counted"
    );
    assert_eq!(get(GetFlowsRequest { blacklist: drops(), ..last(2) }).await, [8, 10]);
    let first = |number| GetFlowsRequest { first: true, ..last(number) };
    assert_eq!(get(first(2)).await, [1, 2]);
    assert_eq!(get(GetFlowsRequest { whitelist: drops(), ..first(2) }).await, [3, 6]);
    let since = |seconds, number| GetFlowsRequest { since: at(seconds), ..last(number) };
    assert_eq!(get(since(8, 0)).await, [8, 9, 10]);
    assert_eq!(get(since(4, 2)).await, [4, 5]);
    assert_eq!(get(since(11, 0)).await, Vec::<i64>::new());
    assert_eq!(get(GetFlowsRequest { until: at(5), ..since(4, 0) }).await, [4, 5]);
    assert_eq!(get(GetFlowsRequest { first: true, until: at(2), ..last(0) }).await, [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_follower_gets_new_flows_until_the_time_it_asked_for() {
    let ring = ring(10);
    let follow = GetFlowsRequest { follow: true, ..GetFlowsRequest::default() };
    let mut new = flows(&ring, &GetFlowsRequest { until: at(13), ..follow.clone() }).await;
    let mut two = flows(&ring, &GetFlowsRequest { number: 2, whitelist: drops(), ..follow }).await;
    assert_eq!((all(&mut new).await, all(&mut two).await), (vec![], vec![6, 9]));
    ring.push(vec![flow(11), flow(12)]);
    assert_eq!((all(&mut new).await, all(&mut two).await), (vec![11, 12], vec![12]));
    ring.push((13..=15).map(flow).collect());
    assert_eq!((all(&mut new).await, all(&mut two).await), (vec![13], vec![15]));
    assert!(new.next().await.is_none(), "it has ended");
    assert!(timeout(Duration::from_secs(60), two.next()).await.is_err(), "it waits");
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_gets_its_losses_once_an_interval_and_their_sum_is_exact() {
    let ring = ring(15);
    let mut slow =
        flows(&ring, &GetFlowsRequest { follow: true, number: 15, ..GetFlowsRequest::default() }).await;
    assert_eq!(number(&slow.next().await.unwrap()), 1);
    // Positions 1 to 5 are overwritten, then 6 to 10 more before the interval has passed.
    ring.push((16..=21).map(flow).collect());
    assert_eq!(number(&slow.next().await.unwrap()), -5);
    assert_eq!(number(&slow.next().await.unwrap()), 7);
    ring.push((22..=26).map(flow).collect());
    assert_eq!(all(&mut slow).await, (12..=26).collect::<Vec<_>>());
    advance(INTERVAL).await;
    assert_eq!(all(&mut slow).await, [-4], "without another event");

    // The last losses of a request that ends.
    let mut ends = flows(&ring, &GetFlowsRequest::default()).await;
    ring.push((27..=60).map(flow).collect());
    assert_eq!(all(&mut ends).await, [-15], "those after the request are not its own");
    assert!(ends.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn losses_before_the_ring_pass_every_filter() {
    let ring = ring(1);
    let lost = LostEvent { num_events_lost: 7, cpu: Some(1), ..LostEvent::default() };
    ring.push(vec![Event::Lost(lost)]);
    let request = GetFlowsRequest { whitelist: drops(), ..GetFlowsRequest::default() };
    assert_eq!(all(&mut flows(&ring, &request).await).await, [-7]);
}

#[tokio::test(start_paused = true)]
async fn a_mask_leaves_the_time_of_the_response() {
    let field_mask = Some(FieldMask { paths: vec!["verdict".to_owned()] });
    let mut flows =
        flows(&ring(3), &GetFlowsRequest { number: 1, field_mask, ..GetFlowsRequest::default() }).await;
    let response = flows.next().await.unwrap();
    assert_eq!(response.time, at(3));
    let masked = Flow { verdict: Verdict::Dropped.into(), ..Flow::default() };
    assert_eq!(response.response_types, Some(ResponseTypes::Flow(masked)));
}

/// A request that walks over many events is suspended in between.
#[tokio::test(start_paused = true)]
async fn a_long_request_lets_other_tasks_run() {
    let ring = Arc::new(Ring::new(1023));
    ring.push((1..=1000).map(flow).collect());
    let filter = FlowFilter { verdict: vec![Verdict::Error.into()], ..FlowFilter::default() };
    let request = GetFlowsRequest { whitelist: vec![filter], ..GetFlowsRequest::default() };
    let answer = Flows::new(&request).unwrap();
    let mut new = Box::pin(Events::new(ring, answer, Range::from(&request), INTERVAL, "node".into()));
    assert!(futures::poll!(&mut new).is_pending());
    let mut flows = new.await.unwrap();
    assert!(futures::poll!(Box::pin(flows.next())).is_pending());
    assert_eq!(flows.next().await, None);
}

async fn refused(request: GetFlowsRequest) -> Status {
    let answer = match Flows::new(&request) {
        Ok(answer) => answer,
        Err(refused) => return refused,
    };
    Events::new(ring(1), answer, Range::from(&request), INTERVAL, "node".into()).await.err().unwrap()
}

#[tokio::test(start_paused = true)]
async fn invalid_requests_are_refused() {
    let both = refused(GetFlowsRequest { first: true, follow: true, ..GetFlowsRequest::default() }).await;
    assert_eq!(both.code(), tonic::Code::InvalidArgument);
    assert_eq!(both.message(), "first cannot be specified with follow");
    let since = Some(Timestamp { seconds: 0, nanos: -1 });
    assert_eq!(
        refused(GetFlowsRequest { since, ..GetFlowsRequest::default() }).await.code(),
        tonic::Code::InvalidArgument
    );
    let field_mask = Some(FieldMask { paths: vec!["nothing".to_owned()] });
    let mask = refused(GetFlowsRequest { field_mask, ..GetFlowsRequest::default() }).await;
    assert_eq!(
        (mask.code(), mask.message()),
        (tonic::Code::Unknown, "invalid fieldmask: \"nothing\" is no field of a flow")
    );
    let filter = FlowFilter { source_port: vec!["x".to_owned()], ..FlowFilter::default() };
    let filter = refused(GetFlowsRequest { whitelist: vec![filter], ..GetFlowsRequest::default() }).await;
    assert_eq!(
        (filter.code(), filter.message()),
        (tonic::Code::Unknown, "invalid filter source_port: \"x\" is no port")
    );
}

/// Notifications have the same options as flows, and neither count for the other.
#[tokio::test(start_paused = true)]
async fn requests_return_events_of_their_kind() {
    let ring = ring(3);
    let notification = |seconds| {
        let event = AgentEvent { r#type: 2, notification: None };
        Event::Agent(Arc::new(event), Timestamp { seconds, nanos: 0 })
    };
    ring.push([4, 5, 6].map(notification).to_vec());
    ring.push(vec![flow(7), Event::Lost(LostEvent { num_events_lost: 7, ..LostEvent::default() })]);
    let last = GetFlowsRequest { number: 2, ..GetFlowsRequest::default() };
    assert_eq!(all(&mut flows(&ring, &last).await).await, [3, 7, -7]);

    let get = async |request: GetAgentEventsRequest| {
        let range = Range::from(&request);
        let mut events =
            Events::new(ring.clone(), AgentEvents, range, INTERVAL, "node".into()).await.unwrap();
        let mut seconds = Vec::new();
        while let Ok(Some(response)) = timeout(Duration::ZERO, events.next()).await {
            assert_eq!((response.node_name.as_str(), response.agent_event.unwrap().r#type), ("node", 2));
            seconds.push(response.time.unwrap().seconds);
        }
        seconds
    };
    let request = GetAgentEventsRequest::default();
    assert_eq!(get(request).await, [4, 5, 6]);
    assert_eq!(get(GetAgentEventsRequest { number: 2, ..request }).await, [5, 6]);
    assert_eq!(get(GetAgentEventsRequest { number: 1, first: true, ..request }).await, [4]);
    assert_eq!(get(GetAgentEventsRequest { since: at(5), ..request }).await, [5, 6]);
    assert_eq!(get(GetAgentEventsRequest { until: at(5), ..request }).await, [4, 5]);
    let invalid = Range::from(&GetAgentEventsRequest { first: true, follow: true, ..request });
    let refused = Events::new(ring.clone(), AgentEvents, invalid, INTERVAL, "node".into()).await;
    assert_eq!(refused.err().unwrap().code(), tonic::Code::InvalidArgument);

    // An overwritten notification is a loss for which these responses have no place.
    let mut slow =
        Events::new(ring.clone(), AgentEvents, Range::default(), INTERVAL, "node".into()).await.unwrap();
    ring.push((8..30).map(flow).collect());
    assert!(slow.next().await.is_none());
}
