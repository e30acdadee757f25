//! Why the rendered files select an I/O backend for HiCache.
//!
//! SGLang (0.5.23) couples three settings. The layout `page_first_direct` works only with the
//! backend `direct`, and `page_first` only with `kernel`. Mooncake needs one of these two, because
//! only they keep the bytes of a page together, so that it is stored without a copy. With `kernel`,
//! SGLang does not decode with FlashAttention 3, the default on Hopper GPUs, but with FlashInfer or
//! Triton.
//!
//! Source: `ServerArgs._handle_hicache` in `python/sglang/srt/server_args.py`. SGLang's guide
//! recommends `kernel`, and its warning about `direct` concerns small pages. mcctl's default is
//! 64 tokens per page, so `direct`, which leaves the attention backend unchanged, is the default.

use crate::ProcessPlan;

/// A comment on the I/O backend in the command line of `plan`. `None` if HiCache is off.
pub(super) fn io_backend_note(plan: &ProcessPlan) -> Option<String> {
    let value = |flag: &str| {
        let at = plan.argv.iter().position(|word| word == flag)?;
        plan.argv.get(at + 1).map(String::as_str)
    };
    match value("--hicache-io-backend")? {
        "direct" => Some(
            "--hicache-io-backend direct: the layout page_first_direct requires it, and SGLang keeps its attention backend. Alternative: \
             kernel with page_first, which copies small pages faster, but SGLang does not decode with FlashAttention 3 then."
                .to_owned(),
        ),
        "kernel" => Some(
            "--hicache-io-backend kernel: copies small pages faster than direct. SGLang decodes with FlashInfer or Triton instead of \
             FlashAttention 3."
                .to_owned(),
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process_plan::tests::bare;

    #[test]
    fn the_reason_names_the_backend_and_its_alternative() {
        let note = |words: &[&str]| {
            let argv = words.iter().map(|word| (*word).to_owned()).collect();
            io_backend_note(&ProcessPlan { argv, ..bare() })
        };
        let direct = note(&["python3", "--hicache-io-backend", "direct"]).expect("a note");
        assert!(direct.contains("page_first_direct") && direct.contains("kernel with page_first"), "{direct}");
        assert!(note(&["python3", "--hicache-io-backend", "kernel"]).is_some_and(|text| text.contains("FlashInfer")));
        assert_eq!(note(&["python3", "--port", "1"]), None);
    }
}
