package io.github.distlock;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.cert.Certificate;
import java.security.cert.CertificateException;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Arrays;
import java.util.Base64;
import java.util.regex.MatchResult;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/** What a client shows and trusts in TLS: a context of the user's, or certificates in files, which are read again. */
final class Trust {
    private static final Pattern CERTIFICATE = Pattern.compile("-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----");
    private static final Pattern KEY = Pattern.compile("-----BEGIN (RSA |EC |)PRIVATE KEY-----([^-:]+)-----END \\1PRIVATE KEY-----");
    private static final char[] NO_PASSWORD = {};

    private final SSLContext given;
    private final Path certFile;
    private final Path keyFile;
    private final Path caFile;

    // Guarded by this.
    private SSLContext made;
    private byte[][] madeOf;

    Trust(SSLContext given, Path certFile, Path keyFile, Path caFile) {
        this.given = given;
        this.certFile = certFile;
        this.keyFile = keyFile;
        this.caFile = caFile;
    }

    /** Returns the context for a new connection. Files that can't be read now count as they were before. */
    synchronized SSLContext context() throws IOException {
        if (given != null) {
            return given;
        }
        try {
            byte[][] files = {read(certFile), read(keyFile), read(caFile)};
            if (made == null || !Arrays.deepEquals(files, madeOf)) {
                made = make(files[0], files[1], files[2]);
                madeOf = files;
            }
        } catch (IOException | GeneralSecurityException | IllegalArgumentException e) {
            if (made == null) {
                throw new IOException("the certificates: " + e.getMessage(), e);
            }
        }
        return made;
    }

    private static byte[] read(Path file) throws IOException {
        return file == null ? null : Files.readAllBytes(file);
    }

    private SSLContext make(byte[] cert, byte[] key, byte[] ca) throws GeneralSecurityException, IOException {
        KeyManagerFactory keys = null;
        if (cert != null) {
            Certificate[] chain = certificates(cert, certFile);
            var store = empty();
            store.setKeyEntry("client", privateKey(key, chain[0]), NO_PASSWORD, chain);
            keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
            keys.init(store, NO_PASSWORD);
        }
        TrustManagerFactory roots = null;
        if (ca != null) {
            var store = empty();
            Certificate[] all = certificates(ca, caFile);
            for (int i = 0; i < all.length; i++) {
                store.setCertificateEntry("ca" + i, all[i]);
            }
            roots = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
            roots.init(store);
        }
        var context = SSLContext.getInstance("TLS");
        context.init(keys == null ? null : keys.getKeyManagers(), roots == null ? null : roots.getTrustManagers(), null);
        return context;
    }

    private static KeyStore empty() throws GeneralSecurityException, IOException {
        var store = KeyStore.getInstance("PKCS12");
        store.load(null, null);
        return store;
    }

    private static Certificate[] certificates(byte[] pem, Path file) throws IOException, GeneralSecurityException {
        try {
            String text = CERTIFICATE.matcher(new String(pem, StandardCharsets.ISO_8859_1)).results().map(MatchResult::group).collect(Collectors.joining("\n"));
            byte[] only = text.isEmpty() ? pem : text.getBytes(StandardCharsets.ISO_8859_1); // keys may stand before them
            var all = CertificateFactory.getInstance("X.509").generateCertificates(new ByteArrayInputStream(only));
            if (!all.isEmpty()) {
                return all.toArray(new Certificate[0]);
            }
        } catch (CertificateException e) {
            // as if there were none
        }
        throw new IOException(file + " has no certificate in PEM");
    }

    private PrivateKey privateKey(byte[] pem, Certificate of) throws GeneralSecurityException, IOException {
        var m = KEY.matcher(new String(pem, StandardCharsets.ISO_8859_1));
        byte[] der = m.find() ? Base64.getMimeDecoder().decode(m.group(2)) : new byte[0];
        if (der.length == 0) {
            throw new IOException(keyFile + " has no \"BEGIN PRIVATE KEY\" without a password; openssl pkcs8 -topk8 -nocrypt writes a key so");
        }
        if (!m.group(1).isEmpty()) { // PKCS #1 or SEC 1, which PKCS #8 has inside
            byte[] key = of.getPublicKey().getEncoded();
            int at = 2 + Math.max(0, key[1] & 0x7f & key[1] >> 7); // its algorithm
            der = der(0x30, new byte[] {2, 1, 0}, Arrays.copyOfRange(key, at, at + 2 + key[at + 1]), der(4, der));
        }
        try {
            return KeyFactory.getInstance(of.getPublicKey().getAlgorithm()).generatePrivate(new PKCS8EncodedKeySpec(der));
        } catch (GeneralSecurityException e) {
            throw new IOException(keyFile + " has no key of the certificate in " + certFile, e);
        }
    }

    /** Returns a value of DER: its tag, its length, and its parts. */
    private static byte[] der(int tag, byte[]... parts) {
        var all = new ByteArrayOutputStream();
        int n = Arrays.stream(parts).mapToInt(p -> p.length).sum();
        all.write(tag);
        all.writeBytes(n < 0x80 ? new byte[] {(byte) n} : n < 0x100 ? new byte[] {(byte) 0x81, (byte) n} : new byte[] {(byte) 0x82, (byte) (n >> 8), (byte) n});
        for (byte[] p : parts) {
            all.writeBytes(p);
        }
        return all.toByteArray();
    }
}
