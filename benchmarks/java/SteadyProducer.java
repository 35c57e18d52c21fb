import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.io.PrintWriter;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The Java producer under a steady load, spoken to by benchmarks/steady.py.
 *
 * <p>It sends to each partition what is due, the counter being the record's value, and notes when
 * each record was sent and when its callback was called. Lines on stdin: "last acks" is answered
 * with the moment of each partition's newest ack and the time since its record was sent; "stop" (or the end of stdin) with one line for
 * each record, after a flush. Moments are seconds of System.nanoTime(), which is the clock that
 * Python calls monotonic.
 */
public final class SteadyProducer {
    private static final int ROOM_S = 600; // how long a run may be

    /** What became of the records of one partition, by counter. */
    private static final class Entries {
        final long[] sentNs;
        final long[] settledNs; // 0: it is not
        final long[] offsets;
        final Map<Integer, String> failures = new HashMap<>();
        int sent;

        Entries(int room) {
            sentNs = new long[room];
            settledNs = new long[room];
            offsets = new long[room];
        }
    }

    private final KafkaProducer<byte[], byte[]> producer;
    private final String topic;
    private final int firstPartition;
    private final Entries[] entries;
    private final AtomicIntegerArray newestAcked; // counter; -1: none
    private volatile boolean stopping;

    private SteadyProducer(String bootstrap, String topic, int first, int count, double perSecond) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("acks", "all");
        settings.put("enable.idempotence", true);
        var bytes = new ByteArraySerializer();
        this.producer = new KafkaProducer<>(settings, bytes, bytes);
        this.topic = topic;
        this.firstPartition = first;
        this.entries = new Entries[count];
        Arrays.setAll(entries, i -> new Entries((int) (perSecond * ROOM_S / count)));
        this.newestAcked = new AtomicIntegerArray(count);
        for (int i = 0; i < count; i++) {
            newestAcked.set(i, -1);
        }
    }

    private void run(double perSecond, double tickSeconds) {
        long beginNs = System.nanoTime();
        for (int number = 0; !stopping; ) {
            int due = (int) ((System.nanoTime() - beginNs) * perSecond / 1e9) + 1;
            for (; number < due; number++) {
                send(number % entries.length, number / entries.length);
            }
            long dueNs = beginNs + (long) (number / perSecond * 1e9) - System.nanoTime();
            LockSupport.parkNanos(Math.max(dueNs, (long) (tickSeconds * 1e9)));
        }
    }

    private void send(int index, int counter) {
        Entries own = entries[index];
        byte[] value = Integer.toString(counter).getBytes();
        own.sentNs[counter] = System.nanoTime();
        own.sent = counter + 1;
        var record = new ProducerRecord<byte[], byte[]>(topic, firstPartition + index, null, value);
        producer.send(record, (told, error) -> {
            own.settledNs[counter] = System.nanoTime();
            if (error == null) {
                own.offsets[counter] = told.offset();
                newestAcked.set(index, counter);
            } else {
                own.failures.put(counter, error.toString().replace('\n', ' '));
            }
        });
    }

    private String newestAcks() {
        var line = new StringBuilder();
        for (int i = 0; i < entries.length; i++) {
            int counter = newestAcked.get(i);
            if (counter < 0) {
                line.append("-1 0 ");
            } else {
                long ackNs = entries[i].settledNs[counter];
                line.append(seconds(ackNs)).append(' ');
                line.append(seconds(ackNs - entries[i].sentNs[counter])).append(' ');
            }
        }
        return line.toString().trim();
    }

    private void tell(PrintWriter out) {
        for (int i = 0; i < entries.length; i++) {
            Entries own = entries[i];
            for (int counter = 0; counter < own.sent; counter++) {
                String head = (firstPartition + i) + " " + counter + " " + seconds(own.sentNs[counter]);
                if (own.settledNs[counter] == 0) {
                    out.println(head + " open -");
                } else if (own.failures.containsKey(counter)) {
                    out.println(head + " failed " + own.failures.get(counter));
                } else {
                    String at = seconds(own.settledNs[counter]);
                    out.println(head + " acked " + own.offsets[counter] + " " + at);
                }
            }
        }
        out.println("end");
        out.flush();
    }

    private static String seconds(long ns) {
        return ns / 1_000_000_000 + String.format(".%09d", ns % 1_000_000_000);
    }

    public static void main(String[] words) throws IOException, InterruptedException {
        int first = Integer.parseInt(words[2]);
        int count = Integer.parseInt(words[3]);
        double perSecond = Double.parseDouble(words[4]);
        double tickSeconds = Double.parseDouble(words[5]);
        double flushSeconds = Double.parseDouble(words[6]);
        var it = new SteadyProducer(words[0], words[1], first, count, perSecond);
        var out = new PrintWriter(new BufferedWriter(new OutputStreamWriter(System.out)));
        out.println(seconds(System.nanoTime()));
        out.flush();
        var sender = new Thread(() -> it.run(perSecond, tickSeconds), "steady");
        sender.setUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        });
        sender.start();
        var in = new BufferedReader(new InputStreamReader(System.in));
        while ("last acks".equals(in.readLine())) {
            out.println(it.newestAcks());
            out.flush();
        }
        it.stopping = true;
        sender.join();
        it.producer.close(Duration.ofMillis((long) (flushSeconds * 1000)));
        it.tell(out);
    }
}
