//! The `outboxd` binary.

use std::process::ExitCode;

use outboxd::cli::Cli;

fn main() -> ExitCode {
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(error) => {
            // Nobody is left to tell when the terminal is gone.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 64 } else { 0 });
        }
    };
    // One thread reads, maps and confirms; librdkafka has its own. The runtime's blocking threads look at topics.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("outboxd: cannot start: {error}");
            return ExitCode::from(71);
        }
    };
    let result = runtime.block_on(cli.run());
    // A question to brokers that do not answer must not keep the process.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => {
            let message = failed.to_string();
            if !message.is_empty() {
                eprintln!("outboxd: {message}");
            }
            ExitCode::from(failed.code())
        }
    }
}
