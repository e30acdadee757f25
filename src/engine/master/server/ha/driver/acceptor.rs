//! The port for standbys. After a handshake that proves the secret, the driver decides how the
//! standby catches up.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinSet;

use crate::server::ha::driver::context::HaContext;
use crate::server::ha::driver::event::{AnsweredStandby, DriverEvent};
use crate::server::ha::handshake::{HANDSHAKE_TIMEOUT, LeaderHandshake};
use mcctl_sys::env::{Env, Listener, Net, deadline};

/// Maximum number of connections to the port for standbys that have not proved the secret yet.
/// Further ones are closed.
const HANDSHAKES_MAX: usize = 64;
/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Accepts connections of standbys, and runs the leader's part of a handshake for each.
pub(in crate::server::ha) async fn accept_standbys<E: Env>(
    context: HaContext<E>,
    mut listener: <E::Net as Net>::Listener,
) {
    let permits = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    let mut handshakes = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(ended) = handshakes.join_next() => {
                if let Err(error) = ended && error.is_panic() {
                    std::panic::resume_unwind(error.into_panic());
                }
            }
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    if let Ok(permit) = permits.clone().try_acquire_owned() {
                        handshakes.spawn(shake_hands(context.clone(), stream, peer, permit));
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a standby");
                    context.env.sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Does the leader's part of a handshake. `_permit` is returned when it has ended.
async fn shake_hands<E: Env>(
    context: HaContext<E>,
    mut stream: <E::Net as Net>::Stream,
    peer: String,
    _permit: OwnedSemaphorePermit,
) {
    // An error means that the driver has ended.
    let send = |event| drop(context.events.send(event));
    let secret = &context.settings.secret;
    let begun = LeaderHandshake::begin(&mut stream, secret);
    let handshake = match deadline(&context.env, HANDSHAKE_TIMEOUT, begun).await {
        Ok(Ok(handshake)) => handshake,
        Ok(Err(error)) => return send(DriverEvent::HandshakeFailed { peer, error }),
        Err(_) => return,
    };
    let (answer, answered) = oneshot::channel();
    let hello = handshake.hello.clone();
    send(DriverEvent::StandbyAsked { peer: peer.clone(), hello: hello.clone(), answer });
    let Ok(acceptance) = answered.await else { return };
    let finished = handshake.finish(&mut stream, secret, &acceptance.welcome);
    if let Ok(Ok(())) = deadline(&context.env, HANDSHAKE_TIMEOUT, finished).await {
        send(DriverEvent::StandbyAnswered(Box::new(AnsweredStandby { peer, hello, acceptance, stream })));
    }
}
