import tensorflow as tf
from keras.models import Model
from keras.layers import Input, Conv2D, MaxPooling2D, Flatten, Dense

# 定义模型
def create_model():
    inputs = Input(shape=(32, 32, 3))
    x = Conv2D(32, (3, 3), activation='relu')(inputs)
    x = MaxPooling2D((2, 2))(x)
    x = Conv2D(64, (3, 3), activation='relu')(x)
    x = MaxPooling2D((2, 2))(x)
    x = Flatten()(x)
    x = Dense(64, activation='relu')(x)
    outputs = Dense(10, activation='softmax')(x)
    model = Model(inputs=inputs, outputs=outputs)
    return model

# 创建模型副本到每个GPU
def create_model_for_gpu():
    num_gpus = len(tf.config.experimental.list_physical_devices('GPU'))
    model = create_model()
    if num_gpus > 1:
        model_replicas = []
        for i in range(num_gpus):
            with tf.device('/gpu:{}'.format(i)):
                model_replica = create_model()
                model_replicas.append(model_replica)
        return model_replicas
    else:
        return [model]

# 编译模型
model = create_model()
model.compile(optimizer='adam', loss='sparse_categorical_crossentropy', metrics=['accuracy'])

# 创建多GPU模型
multi_gpu_model = tf.keras.utils.multi_gpu_model(model, gpus=num_gpus)

# 加载数据并进行训练
(x_train, y_train), (x_test, y_test) = tf.keras.datasets.cifar10.load_data()
multi_gpu_model.fit(x_train, y_train, epochs=10, batch_size=128 * num_gpus, validation_data=(x_test, y_test))
