//! After any sequence of changes and faults the reader has the server's objects.

use proptest::prelude::*;
use serde_json::json;

use super::fake::{Fault, Streaming};
use super::*;

#[derive(Clone, Debug)]
enum Step {
    Put(u8, u8),
    Delete(u8),
    Cut,
    Compact,
    Fault(Fault),
    Streaming(Streaming),
    Chunk(usize),
    Wait(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let fault = prop_oneof![
        Just(Fault::Status(410, None)),
        Just(Fault::Status(429, Some(1))),
        Just(Fault::Status(500, None)),
        Just(Fault::Status(503, None)),
        Just(Fault::Status(504, None)),
        Just(Fault::Html(200)),
        Just(Fault::Refuse),
        (0_usize..3000).prop_map(Fault::Cut),
    ];
    let streaming = prop_oneof![
        Just(Streaming::Yes),
        Just(Streaming::Refused),
        Just(Streaming::EndsAtOnce),
        Just(Streaming::WithoutEnd)
    ];
    prop_oneof![
        6 => (0_u8..20, any::<u8>()).prop_map(|(name, value)| Step::Put(name, value)),
        4 => (0_u8..20).prop_map(Step::Delete),
        3 => Just(Step::Cut),
        2 => Just(Step::Compact),
        3 => fault.prop_map(Step::Fault),
        1 => streaming.prop_map(Step::Streaming),
        1 => (1_usize..200).prop_map(Step::Chunk),
        4 => (0_u16..2000).prop_map(Step::Wait),
    ]
}

async fn run(steps: Vec<Step>) {
    let fake = Fake::new(&["pods"]);
    fake.state.lock().page = 3;
    for n in 0..5 {
        fake.put("pods", "a", &n.to_string(), &json!(n));
    }
    let bench = Bench::new(fake, Kind::Pod).await;
    for step in steps {
        match step {
            Step::Put(name, value) => bench.fake.put("pods", "a", &name.to_string(), &json!(value)),
            Step::Delete(name) => bench.fake.delete("pods", "a", &name.to_string()),
            Step::Cut => bench.fake.cut(),
            Step::Compact => bench.fake.compact(),
            Step::Fault(fault) => bench.fake.fault(fault),
            Step::Streaming(streaming) => bench.fake.state.lock().streaming = streaming,
            Step::Chunk(chunk) => bench.fake.state.lock().chunk = chunk,
            Step::Wait(ms) => tokio::time::sleep(Duration::from_millis(ms.into())).await,
        }
    }
    bench.until_true("pods").await;
    bench.end().await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_faults_ends_with_the_servers_objects(steps in prop::collection::vec(step(), 0..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(run(steps));
    }
}
