"""All targets by their names."""

import fuzz_amqp
import fuzz_amqp_1_0
import fuzz_blocks
import fuzz_config
import fuzz_dmp
import fuzz_http
import fuzz_lines

TARGETS = {
    target.name: target
    for group in (fuzz_lines, fuzz_dmp, fuzz_amqp, fuzz_amqp_1_0, fuzz_http, fuzz_blocks, fuzz_config)
    for target in group.TARGETS
}
