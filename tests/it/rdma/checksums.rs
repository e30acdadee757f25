//! Checksums of objects that are read over RDMA.

use mcctl::engine::transfer::TransferProtocol;

use crate::store::checksums::every_flipped_bit_is_found;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs RDMA devices: tests/rdma-vm/run-tests"]
async fn a_flipped_bit_is_found_over_rdma() {
    every_flipped_bit_is_found("rdma", 50, |config| {
        config.client.engine.protocol = TransferProtocol::Rdma;
        config.client.engine.settings.shared_memory.enabled = false;
    })
    .await;
}
