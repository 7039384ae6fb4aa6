// rhea against omq: run with Node, which finds rhea by NODE_PATH, and a port. It prints a line for each thing that
// worked.
'use strict';
const rhea = require('rhea');
const port = Number(process.argv[2]);
const LARGE = 3 << 20;
const patience = setTimeout(() => { console.error('nothing came'); process.exit(1); }, 100000);

function check(holds, what) {
    if (!holds) throw new Error(what);
}

// Run a conversation on a connection of its own; it calls `done` at its end.
function converse(name, conversation) {
    return new Promise((resolve) => {
        const container = rhea.create_container();
        container.once('connection_open', (context) => {
            conversation(container, context.connection, () => {
                console.log(name);
                context.connection.close();
            });
        });
        container.on('connection_close', resolve);
        container.connect({host: '127.0.0.1', port, reconnect: false});
    });
}

function messages(container, connection, done) {
    let sent = 0, got = 0, accepted = 0;
    const end = () => { if (got === 500 && accepted === 500) done(); };
    connection.open_receiver('r');
    connection.open_sender('r');
    container.on('sendable', (context) => {
        while (sent < 500 && context.sender.sendable()) context.sender.send({body: 'm' + sent++});
    });
    container.on('accepted', () => { accepted += 1; end(); });
    container.on('message', (context) => {
        check(context.message.body === 'm' + got, context.message.body);
        got += 1;
        end();
    });
}

function calls(container, connection, done) {
    let called = 0;
    connection.open_receiver('unicast.rhea').on('message', (context) => {
        connection.send({
            to: context.message.reply_to,
            correlation_id: context.message.correlation_id,
            body: context.message.body.toUpperCase(),
        });
    });
    const replies = connection.open_receiver({source: {dynamic: true}});
    replies.once('receiver_open', () => {
        const sender = connection.open_sender('unicast.rhea');
        const call = () => sender.send({reply_to: replies.source.address, correlation_id: called, body: 'hello'});
        sender.once('sendable', call);
        replies.on('message', (context) => {
            check(context.message.correlation_id === called, 'the answer of another call');
            check(context.message.body === 'HELLO', context.message.body);
            called += 1;
            if (called === 50) done(); else call();
        });
    });
}

function large(container, connection, done) {
    const body = Buffer.alloc(LARGE, 'omq ');
    connection.open_receiver('large').on('message', (context) => {
        check(body.equals(context.message.body.content), 'another body');
        done();
    });
    connection.open_sender('large').once('sendable', (context) => {
        context.sender.send({body: rhea.message.data_section(body)});
    });
}

function drain(container, connection, done) {
    let got = 0;
    const sender = connection.open_sender('drained');
    sender.once('sendable', () => { for (let n = 0; n < 3; n++) sender.send({body: n}); });
    container.on('accepted', () => {
        if (++got < 3) return;
        const receiver = connection.open_receiver({source: 'drained', credit_window: 0});
        let had = 0;
        receiver.on('message', () => { had += 1; });
        receiver.once('receiver_drained', () => {
            check(had === 3, had + ' messages before the answer to drain');
            done();
        });
        receiver.once('receiver_open', () => {
            receiver.drain = true;
            receiver.add_credit(10);
        });
    });
}

function refusal(container, connection, done) {
    connection.open_receiver('$management').once('receiver_error', (context) => {
        check(context.receiver.error.condition === 'amqp:not-found', context.receiver.error.condition);
        connection.open_sender('$management').once('sender_error', (other) => {
            check(other.sender.error.condition === 'amqp:not-found', other.sender.error.condition);
            connection.open_sender('good').once('sendable', done);
        });
    });
}

function reject(container, connection, done) {
    const receiver = connection.open_receiver({source: 'unicast.rejecting', autoaccept: false});
    receiver.on('message', (context) => {
        context.delivery.reject({condition: 'app:no', description: 'not today'});
    });
    receiver.once('receiver_open', () => {
        const sender = connection.open_sender('unicast.rejecting');
        sender.once('sendable', () => sender.send({body: 'x'}));
        sender.on('rejected', (context) => {
            check(context.delivery.remote_state.error.condition === 'app:no', 'another error');
            done();
        });
    });
}

(async () => {
    for (const [name, conversation] of Object.entries({messages, calls, large, drain, refusal, reject})) {
        await converse(name, conversation);
    }
    clearTimeout(patience);
})();
