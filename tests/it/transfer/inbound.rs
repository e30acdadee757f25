//! The end of inbound transfers, before memory is used for something else; and initiators whose
//! connection is closed.

use super::*;

use mcctl::engine::transfer::WriteRetry;

fn header(kind: OpKind, address: u64, size: u64) -> [u8; 24] {
    RequestFrame { kind, version: FramingVersion::V2, address, size }.encode()
}

async fn end_inbound(engine: &TransferEngine) -> usize {
    in_time("the end of the transfers", engine.end_inbound(HOUR)).await.unwrap()
}

/// Waits until the target has closed the connection. A request that it has not read causes a reset.
fn read_to_the_end(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let end = stream.read_to_end(&mut Vec::new());
    assert!(end.is_ok() || end.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_in_progress_ends_and_later_connections_are_served() {
    let ((theirs, memory), ours) = (target(1 << 20).await, engine().await);
    let (mut stream, descriptor) = raw(&theirs, &ours).await;
    let address = descriptor.buffers[0].address;
    stream.write_all(&header(OpKind::Write, address, 1 << 20)).unwrap();
    stream.write_all(&[7; 1000]).unwrap();
    let begun = async || memory.slice(999, 1).unwrap().to_vec() == [7];
    wait_until_async("the first half to be written", PATIENCE, begun).await;
    let silent = raw(&theirs, &ours).await.0;
    wait_until_async("the connections to be accepted", PATIENCE, async || theirs.counters().connections_open == 2)
        .await;
    assert_eq!(end_inbound(&theirs).await, 2);
    assert_eq!(theirs.counters().connections_open, 0);
    memory.fill(0, memory.len(), 5).unwrap();
    // The second half. The kernel may refuse it.
    let _ = stream.write_all(&vec![7; (1 << 20) - 1000]);
    read_to_the_end(&mut stream);
    assert!(memory.whole().to_vec().iter().all(|byte| *byte == 5));
    // The kernel measures the age of connections in ticks.
    tokio::time::sleep(Duration::from_millis(25)).await;
    moves(&ours, &theirs, &memory).await;
    drop(silent);
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_have_arrived_are_written_before_the_end_or_never() {
    let ((theirs, memory), ours) = (target(1 << 20).await, engine().await);
    for round in 0..20u8 {
        let (mut stream, descriptor) = raw(&theirs, &ours).await;
        let address = descriptor.buffers[0].address;
        // The target may not have accepted the connection yet.
        stream.write_all(&header(OpKind::Write, address, 10_000)).unwrap();
        stream.write_all(&vec![round; 10_000]).unwrap();
        end_inbound(&theirs).await;
        memory.fill(0, 10_000, 0xee).unwrap();
        read_to_the_end(&mut stream);
        assert!(memory.slice(0, 10_000).unwrap().to_vec().iter().all(|byte| *byte == 0xee), "{round}");
        // The kernel measures the age of connections in ticks.
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_receives_nothing_does_not_delay_the_end() {
    let ((theirs, _memory), ours) = (target(64 << 20).await, engine().await);
    let (mut stream, descriptor) = raw(&theirs, &ours).await;
    // More than the sockets buffer.
    stream.write_all(&header(OpKind::Read, descriptor.buffers[0].address, 64 << 20)).unwrap();
    stream.read_exact(&mut [0; 100]).unwrap();
    assert_eq!(end_inbound(&theirs).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_transfer_that_was_submitted_before_is_rejected() {
    let (ours, there) = target(1000).await;
    let buffer = memory(1000, 9);
    let batch = |kind| vec![op(kind, &buffer, 0, 1000, there.address())];
    let name = ours.segment_name().to_owned();
    let pending = [OpKind::Write, OpKind::Read].map(|kind| ours.submit(&name, batch(kind), LIMIT));
    assert_eq!((end_inbound(&ours).await, ours.era()), (0, 1));
    for pending in pending {
        assert!(is_rejected(&pending.finish().await[0]));
    }
    assert_eq!(there.whole().to_vec(), pattern(1000, 0));
    ours.transfer(&name, batch(OpKind::Write), LIMIT).await.unwrap();
    assert_eq!(there.whole().to_vec(), pattern(1000, 9));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_was_closed_in_between_is_replaced() {
    let ((theirs, there), ours) = (target(10_000).await, engine().await);
    let buffer = memory(10_000, 9);
    let once = async |ops| {
        let batch = ours.submit(theirs.segment_name(), ops, LIMIT).write_retry(WriteRetry::Forbidden);
        batch.finish().await.into_iter().for_each(Result::unwrap);
    };
    let write = || (0..10).map(|i| op(OpKind::Write, &buffer, i * 1000, 1000, there.address())).collect::<Vec<Op>>();
    once(write()).await;
    for _ in 0..3 {
        assert!(end_inbound(&theirs).await >= 1);
        tokio::time::sleep(Duration::from_millis(25)).await;
        once(write()).await;
    }
    assert_eq!(ours.counters().issued.failures, 0);
}

/// A target that reads some bytes of each connection's first request, and closes the connection.
/// `served` requests are answered before.
fn closing(served: usize) -> (faulty_peers::Fake, Arc<Mutex<Vec<usize>>>) {
    let begun = Arc::new(Mutex::new(Vec::new()));
    let count = Arc::clone(&begun);
    let fake = faulty_peers::Fake::start(2, move |mut stream| {
        for nth in 0..=served {
            let mut header = [0; 24];
            if stream.read_exact(&mut header).is_err() {
                return;
            }
            count.lock().unwrap().push(nth);
            let mut body = vec![0; RequestFrame::decode(&header).size as usize];
            if nth == served {
                stream.read_exact(&mut body[..10]).unwrap();
                return;
            }
            stream.read_exact(&mut body).unwrap();
            stream.write_all(b"\0\0\0\0VTCM").unwrap();
        }
    });
    (fake, begun)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_was_cut_off_is_repeated_only_if_allowed() {
    let buffer = memory(100_000, 1);
    let one = || vec![op(OpKind::Write, &buffer, 0, 100_000, 4096)];
    let many = || (0..30).map(|i| op(OpKind::Write, &buffer, i * 1000, 1000, 4096)).collect::<Vec<Op>>();
    for (ops, served) in [(one(), 0), (one(), 1), (many(), 0), (many(), 3)] {
        let (fake, begun) = closing(served);
        let mut single = config("127.0.0.1");
        single.settings.transports.tcp.connections_per_peer = 1;
        let ours = start(single).await;
        for _ in 0..usize::from(ops.len() == 1) * served {
            ours.transfer(&fake.name, one(), LIMIT).await.unwrap();
        }
        let before = begun.lock().unwrap().len();
        let results = ours.submit(&fake.name, ops.clone(), LIMIT).write_retry(WriteRetry::Forbidden).finish().await;
        let failed = results.iter().filter(|result| result.is_err()).count();
        let count = ops.len();
        let expected = if count == 1 { 1 } else { count - served };
        assert_eq!(failed, expected, "{results:?}");
        assert!(results.into_iter().filter_map(Result::err).all(|error| error.may_still_land()));
        assert_eq!(begun.lock().unwrap().len() - before, count - failed + 1, "no request was sent again");
    }
    // Without this rule, another connection is tried: the peer may have closed the first one for
    // another reason.
    let (fake, begun) = closing(0);
    let results = engine().await.submit(&fake.name, many(), LIMIT).finish().await;
    assert!(results.iter().all(Result::is_err) && begun.lock().unwrap().len() > 2, "{results:?}");
}
