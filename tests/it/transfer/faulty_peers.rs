//! The engine against peers that answer wrongly, late, partly or not at all.

use super::*;

/// A peer that answers its handshake with a descriptor, and runs `serve` on the data port.
pub struct Fake {
    pub name: String,
}

impl Fake {
    pub fn start(version: u64, serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Fake {
        let data = TcpListener::bind("127.0.0.1:0").unwrap();
        let handshake = TcpListener::bind("127.0.0.1:0").unwrap();
        let name = handshake.local_addr().unwrap().to_string();
        let descriptor = SegmentDescriptor {
            name: name.clone(),
            protocol: "tcp".into(),
            tcp_data_host: "127.0.0.1".into(),
            tcp_data_port: u64::from(data.local_addr().unwrap().port()),
            tcp_proto_version: version,
            ..SegmentDescriptor::default()
        };
        let json = descriptor.to_json();
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = handshake.accept() {
                let mut length = [0; 8];
                if stream.read_exact(&mut length).is_err() {
                    continue;
                }
                let mut request = vec![0; u64::from_le_bytes(length) as usize];
                stream.read_exact(&mut request).unwrap();
                let mut reply = ((json.len() + 2) as u64).to_le_bytes().to_vec();
                reply.push(request[0]);
                reply.extend_from_slice(json.as_bytes());
                reply.push(b'\n');
                stream.write_all(&reply).unwrap();
            }
        });
        let serve = Arc::new(serve);
        std::thread::spawn(move || {
            while let Ok((stream, _)) = data.accept() {
                let serve = Arc::clone(&serve);
                std::thread::spawn(move || serve(stream));
            }
        });
        Fake { name }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hung_peer_costs_its_deadline_once() {
    let fake = Fake::start(2, |stream| {
        let mut all = Vec::new();
        let _ = (&stream).read_to_end(&mut all);
    });
    let ours = engine().await;
    let began = Instant::now();
    let allowed = Duration::from_millis(300);
    let first = ours.transfer(&fake.name, read_10(), allowed).await.unwrap_err();
    assert!(matches!(first, TransferError::Timeout { limit, .. } if limit == allowed), "{first}");
    assert!(began.elapsed() >= Duration::from_millis(250), "{:?}", began.elapsed());
    // The others fail without a request, so none of them waits for its deadline.
    for _ in 0..50 {
        let error =
            in_time("a call to a peer that is down", ours.transfer(&fake.name, read_10(), HOUR)).await.unwrap_err();
        assert!(matches!(error, TransferError::Down { .. }), "{error}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(ours.peers()[0].down);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_with_one_request_per_connection_is_supported() {
    // Like releases 0.3.6 to 0.3.9: version 1, and the connection is closed after each request.
    let fake = Fake::start(1, |mut stream| {
        let mut header = [0; 24];
        stream.read_exact(&mut header).unwrap();
        let header = RequestFrame::decode(&header);
        assert_eq!(header.version, FramingVersion::V1);
        let mut body = vec![0; header.size as usize];
        match header.kind {
            OpKind::Read => stream.write_all(&pattern(body.len(), 5)).unwrap(),
            OpKind::Write => {
                stream.read_exact(&mut body).unwrap();
                assert!(body == pattern(body.len(), 9));
            }
        }
    });
    let ours = engine().await;
    for _ in 0..3 {
        let buffer = memory(300_000, 9);
        let write = vec![op(OpKind::Write, &buffer, 0, 300_000, 77)];
        ours.transfer(&fake.name, write, LIMIT).await.unwrap();
        let ops = vec![op(OpKind::Read, &buffer, 0, 100_000, 77), op(OpKind::Read, &buffer, 100_000, 9, 1)];
        ours.transfer(&fake.name, ops, LIMIT).await.unwrap();
        assert!(buffer.slice(0, 100_000).unwrap().to_vec() == pattern(100_000, 5));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_status_is_reported_with_its_value() {
    let fake = Fake::start(2, |mut stream| stream.write_all(b"HTTP/1.1 400 Bad Request\r\n").unwrap());
    let error = engine().await.transfer(&fake.name, read_10(), LIMIT).await.unwrap_err();
    assert!(
        matches!(error, TransferError::BadStatus { word, .. } if word == u64::from_le_bytes(*b"HTTP/1.1")),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_peer_hits_the_deadline_but_is_not_marked_down() {
    let fake = Fake::start(2, |mut stream| {
        let mut header = [0; 24];
        stream.read_exact(&mut header).unwrap();
        stream.write_all(b"\0\0\0\0VTCM").unwrap();
        while stream.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    let ours = engine().await;
    let buffer = Arc::new(Memory::from_vec(vec![0; 4096]));
    let began = Instant::now();
    let read = vec![op(OpKind::Read, &buffer, 0, 4096, 4096)];
    let allowed = Duration::from_millis(400);
    let error = in_time("the deadline", ours.transfer(&fake.name, read, allowed)).await.unwrap_err();
    assert!(matches!(error, TransferError::Timeout { limit, .. } if limit == allowed), "{error}");
    assert!(began.elapsed() >= Duration::from_millis(350), "{:?}", began.elapsed());
    assert!(!ours.peers()[0].down);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_read_from_a_peer_that_does_not_close() {
    // Every connection stays open until the end of the test.
    let open = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&open);
    let fake = Fake::start(2, move |mut stream| {
        let mut header = [0; 24];
        stream.read_exact(&mut header).unwrap();
        stream.write_all(b"\x01\0\0\0VTCM").unwrap();
        kept.lock().unwrap().push(stream);
    });
    let ours = engine().await;
    let buffer = Arc::new(Memory::from_vec(vec![0; 64 << 20]));
    for kind in [OpKind::Read, OpKind::Write] {
        let batch = ours.submit(&fake.name, vec![op(kind, &buffer, 0, 64 << 20, 4096)], HOUR);
        let results = in_time("the refusal", batch.finish()).await;
        assert!(is_rejected(&results[0]), "{results:?}");
    }
    drop(open);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_closed_by_the_peer_are_replaced_without_error() {
    // Serves one request per connection and closes it, although it announces version 2.
    let fake = Fake::start(2, |mut stream| {
        let mut header = [0; 24];
        stream.read_exact(&mut header).unwrap();
        stream.write_all(b"\0\0\0\0VTCM0123456789").unwrap();
    });
    let ours = engine().await;
    for _ in 0..10 {
        ours.transfer(&fake.name, read_10(), LIMIT).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_a_broken_connection_are_retried_one_by_one() {
    // Answers three requests of each connection, and half of the fourth.
    let fake = Fake::start(2, |mut stream| {
        for n in 0..4 {
            let mut header = [0; 24];
            if stream.read_exact(&mut header).is_err() {
                return;
            }
            let address = RequestFrame::decode(&header).address;
            let answer = [&b"\0\0\0\0VTCM"[..], &[address as u8; 10]].concat();
            if stream.write_all(&answer[..if n < 3 { 18 } else { 12 }]).is_err() {
                return;
            }
        }
        // Shut down in order, because a reset would discard the responses.
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let ours = engine().await;
    let buffer = Arc::new(Memory::from_vec(vec![0; 320]));
    let ops = (0..32).map(|i| op(OpKind::Read, &buffer, i * 10, 10, 4096 + 1 + i as u64)).collect();
    let results = ours.submit(&fake.name, ops, LIMIT).finish().await;
    let done: Vec<usize> = (0..32).filter(|i| results[*i].is_ok()).collect();
    assert!((24..32).contains(&done.len()), "three of four on each connection: {results:?}");
    for i in done {
        assert_eq!(buffer.slice(i * 10, 10).unwrap().to_vec(), [i as u8 + 1; 10], "{i}");
    }
    assert!(results.iter().flat_map(|r| r.as_ref().err()).all(|e| matches!(e, TransferError::Lost { .. })));
}
